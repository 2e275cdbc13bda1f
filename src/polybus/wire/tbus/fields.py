"""The values that stand in TBus messages: how each is written, read and bounded.

`Wrong` says what is wrong with a value, not who is to blame: `codec` knows whether it came from the
peer or from our caller.
"""

from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from polybus.wire.varint import MAX_VARINT, Fault, encode_varint, varint_decoder

REPRESENTATION: Final = "TB-01"
"""The requirement that says how integers, strings, properties and frames are written."""

Value: TypeAlias = int | str | bytes | tuple[str, ...] | None


class Wrong(Exception):
    """Something that a message may not hold. Without a `rule` it is that of the message's layout."""

    def __init__(self, text: str, rule: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.rule = rule


class Number(msgspec.Struct, frozen=True):
    """An unsigned integer of `size` bytes. With `meanings`, one of those."""

    size: int
    lowest: int = 0
    meanings: type[IntEnum] | None = None

    @property
    def highest(self) -> int:
        return (1 << 8 * self.size) - 1


class Text(msgspec.Struct, frozen=True):
    """UTF-8 behind its length; `shortest` and `longest` are bytes."""

    may_hold_null: bool = True
    shortest: int = 0
    longest: int = MAX_VARINT


class Texts(msgspec.Struct, frozen=True):
    """Strings one behind the other, behind the length of them all; they come in groups of `each`."""

    each: int = 1


class Binary(msgspec.Struct, frozen=True):
    """Bytes behind their length."""


class Rest(msgspec.Struct, frozen=True):
    """All the bytes up to the end of the message."""

    shortest: int = 0


Codec: TypeAlias = Number | Text | Texts | Binary | Rest

_ANY_TEXT: Final = Text()

VARINT_FAULTS: Final = {
    Fault.TOO_LONG: "a varint of more than 4 bytes",
    Fault.NOT_MINIMAL: "a varint of more bytes than its value needs",
    Fault.CUT_SHORT: "a varint that does not end",
}

decode_varint: Final = varint_decoder(lambda fault: Wrong(VARINT_FAULTS[fault], REPRESENTATION))
"""The varint at a position of some bytes, and the position after it. Raises Wrong."""


def decode_length(name: str, data: bytes, pos: int, end: int) -> tuple[int, int]:
    """How many bytes `name` has, and where they begin. Raises Wrong if they reach past `end`."""
    if pos >= end:
        raise Wrong(f"{name} is missing: nothing is left where its length should be")
    try:
        size, start = decode_varint(data, pos)
    except Wrong as wrong:
        raise Wrong(f"the length of {name} is {wrong.text}", wrong.rule) from None
    if start + size > end:
        raise Wrong(f"{name} says it has {size} bytes, but what is left is {max(end - start, 0)}")
    return size, start


def decode_value(codec: Codec, name: str, data: bytes, pos: int, end: int) -> tuple[Value, int]:
    """The value at `pos` and the position after it. Raises Wrong if it is not lawful or reaches past `end`."""
    match codec:
        case Number():
            stop = pos + codec.size
            if stop > end:
                raise Wrong(f"{name} has {codec.size} bytes, but what is left is {end - pos}")
            return _checked_number(codec, name, int.from_bytes(data[pos:stop], "big")), stop
        case Text():
            size, start = decode_length(name, data, pos, end)
            try:
                text = data[start : start + size].decode()
            except UnicodeDecodeError as error:
                raise Wrong(f"{name} is not UTF-8 from its byte {error.start} on", REPRESENTATION) from None
            _check_text(codec, name, text, size)
            return text, start + size
        case Texts():
            size, start = decode_length(name, data, pos, end)
            return _decode_texts(codec, name, data, start, start + size), start + size
        case Binary():
            size, start = decode_length(name, data, pos, end)
            return data[start : start + size], start + size
        case Rest():
            _check_rest(codec, name, end - pos)
            return data[pos:end], end


def _decode_texts(codec: Texts, name: str, data: bytes, pos: int, end: int) -> tuple[str, ...]:
    texts: list[str] = []
    while pos < end:
        text, pos = decode_value(_ANY_TEXT, name, data, pos, end)
        assert isinstance(text, str)
        texts.append(text)
    _check_texts(codec, name, len(texts))
    return tuple(texts)


def encode_value(codec: Codec, name: str, value: Value) -> bytes:
    """The bytes of a value. Raises Wrong for what `decode_value` would refuse."""
    match codec, value:
        case Number(), int():
            return _checked_number(codec, name, value).to_bytes(codec.size, "big")
        case Text(), str():
            raw = encode_utf8(name, value)
            _check_text(codec, name, value, len(raw))
            return encode_varint(len(raw)) + raw
        case Texts(), tuple():
            _check_texts(codec, name, len(value))
            parts = b"".join(encode_value(_ANY_TEXT, name, text) for text in value)
            return encode_varint(len(parts)) + parts
        case Binary(), bytes():
            return encode_varint(len(value)) + value
        case Rest(), bytes():
            _check_rest(codec, name, len(value))
            return value
        case _:
            raise Wrong(f"{name} is missing" if value is None else f"{name} cannot be {type(value).__name__}")


def encode_utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Wrong(f"{name} contains a surrogate, which UTF-8 cannot hold", REPRESENTATION) from None


def _checked_number(codec: Number, name: str, number: int) -> int:
    if codec.meanings is not None:
        try:
            return codec.meanings(number)
        except ValueError:
            lawful = ", ".join(str(int(meaning)) for meaning in codec.meanings)
            raise Wrong(f"{name} is {number}, which is not one of {lawful}") from None
    if not codec.lowest <= number <= codec.highest:
        raise Wrong(f"{name} is {number}, which is not in {codec.lowest}..{codec.highest}")
    return number


def _check_text(codec: Text, name: str, text: str, size: int) -> None:
    if size < codec.shortest:
        raise Wrong(f"{name} is empty")
    if size > codec.longest:
        raise Wrong(f"{name} has {size} bytes and may have at most {codec.longest}")
    if not codec.may_hold_null and "\0" in text:
        raise Wrong(f"{name} contains U+0000", REPRESENTATION)


def _check_texts(codec: Texts, name: str, count: int) -> None:
    if count % codec.each:
        raise Wrong(f"{name} are {count} strings, which is no multiple of {codec.each}")


def _check_rest(codec: Rest, name: str, size: int) -> None:
    if size < codec.shortest:
        raise Wrong(f"there are no {name}")
