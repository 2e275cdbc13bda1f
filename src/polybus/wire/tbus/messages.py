"""Any TBus message, read and written as its layout says.

`publish` has quicker ways for the messages that come by the million; what they cannot read comes here.
"""

from collections.abc import Mapping
from typing import Final

from polybus.wire.tbus.fields import Value, Wrong, decode_length, decode_value, encode_value
from polybus.wire.tbus.layouts import LAYOUTS, PROPERTIES, Layout, Properties, PropertySpec
from polybus.wire.tbus.packets import MessageType, Packet, Publish
from polybus.wire.varint import encode_varint

_TYPES: Final[Mapping[object, MessageType]] = {
    layout.build: MessageType(kind) for kind, layout in LAYOUTS.items()
}


def type_of(packet: Packet) -> MessageType:
    return _TYPES[type(packet)]


def decode_message(kind: MessageType, flags: int, body: bytes) -> Packet:
    """The message that a body holds. Raises Wrong."""
    layout = LAYOUTS[kind]
    _check_flags(layout, flags)
    values: dict[str, Value] = {flag.field: bool(flags & flag.mask) for flag in layout.flags}
    pos, end = 0, len(body)
    for field in layout.head:
        if flags & field.absent_with:
            values[field.field] = None
        else:
            values[field.field], pos = decode_value(field.codec, field.name, body, pos, end)
    if layout.properties is Properties.ALWAYS or (layout.properties is Properties.OPTIONAL and pos < end):
        pos = _decode_properties(kind, body, pos, end, values)
    for field in layout.tail:
        values[field.field], pos = decode_value(field.codec, field.name, body, pos, end)
    if pos < end:
        raise Wrong(f"{end - pos} bytes follow where the message should end")
    packet = layout.build(**values)
    _check_kind(packet)
    return packet


def encode_message(packet: Packet) -> tuple[int, bytes]:
    """The first byte and the body. Raises Wrong for what `decode_message` would refuse."""
    kind = type_of(packet)
    layout = LAYOUTS[kind]
    flags = sum(flag.mask for flag in layout.flags if getattr(packet, flag.field))
    _check_flags(layout, flags)
    parts: list[bytes] = []
    for field in layout.head:
        value = getattr(packet, field.field)
        if not flags & field.absent_with:
            parts.append(encode_value(field.codec, field.name, value))
        elif value is not None:
            raise Wrong(f"{field.name} has no place beside these flags")
    if layout.properties is not Properties.NEVER:
        block = _encode_properties(kind, packet)
        if block or layout.properties is Properties.ALWAYS:
            parts += (encode_varint(len(block)), block)
    parts += (encode_value(field.codec, field.name, getattr(packet, field.field)) for field in layout.tail)
    _check_kind(packet)
    return kind << 4 | flags, b"".join(parts)


def _decode_properties(kind: MessageType, body: bytes, pos: int, end: int, values: dict[str, Value]) -> int:
    """Puts the properties at `pos` into `values`; the position after them."""
    size, pos = decode_length("the properties", body, pos, end)
    stop = pos + size
    seen: set[str] = set()
    while pos < stop:
        spec = PROPERTIES.get(body[pos])
        if spec is None:
            raise Wrong(f"property 0x{body[pos]:02X} is unknown; {_allowed(kind)}")
        if kind not in spec.allowed_in:
            raise Wrong(f"property {spec.name} is not allowed here; {_allowed(kind)}")
        if spec.name in seen:
            raise Wrong(f"property {spec.name} stands there twice")
        seen.add(spec.name)
        values[spec.field], pos = decode_value(spec.codec, spec.name, body, pos + 1, stop)
    for name in LAYOUTS[kind].needed:
        if name not in seen:
            raise Wrong(f"property {name} is missing")
    return pos


def _encode_properties(kind: MessageType, packet: Packet) -> bytes:
    parts: list[bytes] = []
    needed = LAYOUTS[kind].needed
    for identifier, spec in _properties_of(kind).items():
        value = getattr(packet, spec.field)
        if value is not None or spec.name in needed:
            parts += (bytes((identifier,)), encode_value(spec.codec, spec.name, value))
    return b"".join(parts)


def _properties_of(kind: MessageType) -> dict[int, PropertySpec]:
    return {identifier: spec for identifier, spec in PROPERTIES.items() if kind in spec.allowed_in}


def _allowed(kind: MessageType) -> str:
    return "allowed are " + ", ".join(spec.name for spec in _properties_of(kind).values())


def _check_flags(layout: Layout, flags: int) -> None:
    lawful = sum(flag.mask for flag in layout.flags)
    if flags & ~lawful:
        raise Wrong(f"the flags are {flags:04b}, where unused ones are 0: at most {lawful:04b}")
    if layout.exclusive and flags & layout.exclusive == layout.exclusive:
        names = " and ".join(flag.name for flag in layout.flags if flag.mask & layout.exclusive)
        raise Wrong(f"the flags {names} are set together")


def _check_kind(packet: Packet) -> None:
    """A request and an answer have to say which, an answer also whose."""
    if not isinstance(packet, Publish) or not (packet.is_request or packet.is_response):
        return
    name = "a request" if packet.is_request else "an answer"
    if packet.packet_id is None:
        raise Wrong(f"{name} without PacketId")
    if packet.is_response and packet.response_destination is None:
        raise Wrong(f"{name} without ResponseDestination")
