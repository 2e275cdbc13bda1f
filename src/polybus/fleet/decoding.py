"""From a message's topic and payload to a record, or to the reason why it is none (PL-04)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from polybus.fleet.records import KINDS, TOPIC_ROOT, VERSION, Record


class Reason(StrEnum):
    """Why a message is set aside."""

    UNKNOWN_TYPE = "unknown type"
    EMPTY = "empty"
    HUGE = "huge"
    NOT_UTF8 = "not UTF-8"
    NOT_JSON = "not JSON"
    NOT_MSGPACK = "not MessagePack"
    WRONG_SCHEMA = "wrong schema"
    UNKNOWN_VERSION = "unknown version"
    WRONG_TRUCK = "wrong truck"
    CLOCK_OFF = "clock off"


class Rejected(NamedTuple):
    reason: Reason
    detail: str


class Limits(NamedTuple):
    max_payload_bytes: int = 1 << 20
    max_clock_error_s: float = 366 * 86_400.0
    """Between a truck's clock and the broker's: years are an error, a day in a tunnel is none."""


class _Head(msgspec.Struct):
    v: int


_HEAD_JSON: Final = msgspec.json.Decoder(_Head)
_HEAD_MSGPACK: Final = msgspec.msgpack.Decoder(_Head)
_JSON: Final[Mapping[str, msgspec.json.Decoder[Record]]] = {
    kind: msgspec.json.Decoder(struct) for kind, struct in KINDS.items()
}
_MSGPACK: Final[Mapping[str, msgspec.msgpack.Decoder[Record]]] = {
    kind: msgspec.msgpack.Decoder(struct) for kind, struct in KINDS.items()
}
_MAX_DETAIL: Final = 200


def split_topic(topic: str) -> tuple[str, str] | None:
    """Truck and kind, if it is a topic of the fleet's."""
    levels = topic.split("/")
    if len(levels) != 3 or levels[0] != TOPIC_ROOT or not levels[1]:
        return None
    return levels[1], levels[2]


def decode_message(
    topic: str | None, payload: bytes | None, received_ms: int, limits: Limits
) -> Record | Rejected:
    """Files that hold messages may lack one or the other."""
    place = split_topic(topic or "")
    if place is None:
        return Rejected(Reason.UNKNOWN_TYPE, f"the topic is not {TOPIC_ROOT}/TRUCK/KIND")
    truck, kind = place
    if kind not in KINDS:
        return Rejected(Reason.UNKNOWN_TYPE, f"{kind[:50]!r} is none of {', '.join(KINDS)}")
    if not payload:
        return Rejected(Reason.EMPTY, "the payload has no bytes")
    if len(payload) > limits.max_payload_bytes:
        return Rejected(Reason.HUGE, f"{len(payload)} bytes, at most {limits.max_payload_bytes} are taken")
    record = _decode(kind, payload)
    if isinstance(record, Rejected):
        return record
    if record.truck != truck:
        return Rejected(
            Reason.WRONG_TRUCK, f"the record is of {record.truck[:50]!r}, the topic of {truck[:50]!r}"
        )
    error_ms = record.at - received_ms  # an int of any size: a float would overflow
    if abs(error_ms) > limits.max_clock_error_s * 1000:
        side = "ahead of" if error_ms > 0 else "behind"
        days = str((abs(error_ms) + 43_200_000) // 86_400_000)
        return Rejected(Reason.CLOCK_OFF, f"{days[:20]}{'…' if days[20:] else ''} days {side} the broker's")
    return record


def _decode(kind: str, payload: bytes) -> Record | Rejected:
    is_msgpack = payload[0] == 0xDE or payload[0] & 0xF0 == 0x80  # a map; JSON begins with a brace or a blank
    head: msgspec.json.Decoder[_Head] | msgspec.msgpack.Decoder[_Head]
    body: msgspec.json.Decoder[Record] | msgspec.msgpack.Decoder[Record]
    head, body = (_HEAD_MSGPACK, _MSGPACK[kind]) if is_msgpack else (_HEAD_JSON, _JSON[kind])
    try:
        if not is_msgpack and not payload.isascii():
            payload.decode()  # msgspec looks only at the strings it takes
        record = body.decode(payload)
    except msgspec.ValidationError as error:
        return _wrong_schema(head, payload, error)
    except msgspec.DecodeError as error:
        return Rejected(Reason.NOT_MSGPACK if is_msgpack else Reason.NOT_JSON, str(error)[:_MAX_DETAIL])
    except UnicodeDecodeError as error:
        return Rejected(Reason.NOT_UTF8, f"{error.reason} at byte {error.start}")
    except RecursionError:
        return Rejected(Reason.WRONG_SCHEMA, "lists or maps within one another, too deep to be read")
    if record.v != VERSION:
        return _unknown_version(record.v)
    return record


def _wrong_schema(
    head: "msgspec.json.Decoder[_Head] | msgspec.msgpack.Decoder[_Head]",
    payload: bytes,
    error: msgspec.ValidationError,
) -> Rejected:
    """Of another version the fields may well be others."""
    try:
        version = head.decode(payload).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        version = VERSION
    return (
        Rejected(Reason.WRONG_SCHEMA, str(error)[:_MAX_DETAIL])
        if version == VERSION
        else _unknown_version(version)
    )


def _unknown_version(version: int) -> Rejected:
    return Rejected(Reason.UNKNOWN_VERSION, f"version {version}"[:_MAX_DETAIL] + f"; {VERSION} is known")
