"""AMQP 0-9-1 frames: where they end, what they are called, and what an application sends in them."""

import struct
from collections.abc import Sequence
from typing import Final

from polybus.pipeline.transforms.frames_types import Frame, Unreadable

HEADER: Final = b"AMQP\x00\x00\x09\x01"
_METHOD, _CONTENT, _BODY, _HEARTBEAT = 1, 2, 3, 8
_END: Final = 0xCE
_OVERHEAD: Final = 8
_LARGEST: Final = 1 << 28

_CLASSES: Final = {
    10: "Connection", 20: "Channel", 40: "Exchange", 50: "Queue", 60: "Basic", 85: "Confirm", 90: "Tx",
}  # fmt: skip
_METHODS: Final = {
    10: {
        10: "Start", 11: "StartOk", 20: "Secure", 21: "SecureOk", 30: "Tune", 31: "TuneOk", 40: "Open",
        41: "OpenOk", 50: "Close", 51: "CloseOk", 60: "Blocked", 61: "Unblocked", 70: "UpdateSecret",
        71: "UpdateSecretOk",
    },
    20: {10: "Open", 11: "OpenOk", 20: "Flow", 21: "FlowOk", 40: "Close", 41: "CloseOk"},
    40: {
        10: "Declare", 11: "DeclareOk", 20: "Delete", 21: "DeleteOk", 30: "Bind", 31: "BindOk", 40: "Unbind",
        51: "UnbindOk",
    },
    50: {
        10: "Declare", 11: "DeclareOk", 20: "Bind", 21: "BindOk", 30: "Purge", 31: "PurgeOk", 40: "Delete",
        41: "DeleteOk", 50: "Unbind", 51: "UnbindOk",
    },
    60: {
        10: "Qos", 11: "QosOk", 20: "Consume", 21: "ConsumeOk", 30: "Cancel", 31: "CancelOk", 40: "Publish",
        50: "Return", 60: "Deliver", 70: "Get", 71: "GetOk", 72: "GetEmpty", 80: "Ack", 90: "Reject",
        100: "RecoverAsync", 110: "Recover", 111: "RecoverOk", 120: "Nack",
    },
    85: {10: "Select", 11: "SelectOk"},
    90: {10: "Select", 11: "SelectOk", 20: "Commit", 21: "CommitOk", 30: "Rollback", 31: "RollbackOk"},
}  # fmt: skip
"""AMQP 0-9-1 and what RabbitMQ adds: class -> method -> name."""


class AmqpDecoder:
    protocol = "amqp"

    def __init__(self) -> None:
        # (side, channel) -> the topic of the message whose header and body frames follow
        self._topics: dict[tuple[bool, int], str | None] = {}

    def measure(self, data: bytes, pos: int, to_server: bool) -> int | None:
        if data[pos : pos + 4] == b"AMQP"[: len(data) - pos]:
            return len(HEADER)
        kind = data[pos]
        if kind not in (_METHOD, _CONTENT, _BODY, _HEARTBEAT):
            raise Unreadable(f"frame type {kind} is not 1, 2, 3 or 8")
        if pos + 7 > len(data):
            return None
        (size,) = struct.unpack_from(">I", data, pos + 3)
        if size > _LARGEST:
            raise Unreadable(f"a frame of {size} bytes is longer than any that is agreed on")
        whole = int(size) + _OVERHEAD
        if pos + whole <= len(data) and data[pos + whole - 1] != _END:
            raise Unreadable(f"the frame ends with 0x{data[pos + whole - 1]:02X}, not with 0xCE")
        return whole

    def is_plausible(self, data: bytes, pos: int, size: int, to_server: bool) -> bool:
        if data[pos : pos + 8] == HEADER:
            return True
        if data[pos] != _METHOD:
            return True  # `measure` has seen the type, and the end if it is there
        class_id, method_id = struct.unpack_from(">HH", data.ljust(pos + 11, b"\0"), pos + 7)
        return pos + 11 > len(data) or method_id in _METHODS.get(class_id, {})

    def prepare(self, frames: Sequence[tuple[bytes, bool]]) -> None:
        """An AMQP frame says by itself how to read it."""

    def read(self, data: bytes, to_server: bool) -> list[Frame]:
        if data.startswith(b"AMQP"):
            return [Frame("ProtocolHeader", len(data))]
        kind, channel, size = struct.unpack_from(">BHI", data)
        if kind == _HEARTBEAT:
            return [Frame("Heartbeat", len(data))]
        topic = self._topics.get((to_server, channel))
        if kind == _CONTENT:
            return [Frame("ContentHeader", len(data), 0, topic)]
        if kind == _BODY:
            return [Frame("ContentBody", len(data), size, topic)]
        return [self._method(data, channel, to_server)]

    def _method(self, data: bytes, channel: int, to_server: bool) -> Frame:
        arguments = data[11:-1]
        if len(data) < 12:
            raise Unreadable("a method frame without a method")
        class_id, method_id = struct.unpack_from(">HH", data, 7)
        methods = _METHODS.get(class_id, {})
        if method_id not in methods:
            raise Unreadable(f"there is no method {class_id}.{method_id}")
        name = f"{_CLASSES[class_id]}.{methods[method_id]}"
        topic = packet_id = None
        try:
            if name == "Basic.Publish":
                _, at = _short_string(arguments, 2)
                topic, _ = _short_string(arguments, at)
            elif name == "Basic.Deliver":
                _, at = _short_string(arguments, 0)
                (packet_id,) = struct.unpack_from(">Q", arguments, at)
                _, at = _short_string(arguments, at + 9)
                topic, _ = _short_string(arguments, at)
            elif name in ("Basic.Ack", "Basic.Nack", "Basic.Reject"):
                (packet_id,) = struct.unpack_from(">Q", arguments)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise Unreadable(f"{name}: its arguments cannot be read") from error
        if topic is not None:
            self._topics[to_server, channel] = topic
        # Delivery tags count to 2^64; a table's numbers have a sign.
        return Frame(
            name, len(data), 0, topic, None if packet_id is None else packet_id & 0x7FFF_FFFF_FFFF_FFFF
        )


def _short_string(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    if end > len(data):
        raise IndexError(end)
    return data[at + 1 : end].decode(), end
