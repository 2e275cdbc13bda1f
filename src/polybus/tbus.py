"""The client in the words of the document that defines TBus (its section 5.4), for programs written so.

A thin layer over `polybus.connect_blocking`, which can do more. `subscribe` takes messages and requests
alike: what the callback returns answers a request.
"""

import sys
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeVar

from polybus.client.blocking import BlockingBus, BlockingRequest, BlockingService, BlockingSubscription
from polybus.client.bus import REQUEST_TIMEOUT_S
from polybus.client.errors import BusClosed
from polybus.client.events import BusEvent, Closed, Disconnected, HandlerFailed, ServiceFailed
from polybus.client.message import Message
from polybus.errors import UsageError
from polybus.wire.tbus.fields import Number, Text, Wrong, decode_value, decode_varint, encode_value
from polybus.wire.tbus.packets import DisconnectReason
from polybus.wire.varint import encode_varint

__all__ = [
    "DisconnectReasonCode",
    "TBusClient",
    "decode_2_bytes",
    "decode_4_bytes",
    "decode_string",
    "decode_var_len_int",
    "encode_2_bytes",
    "encode_4_bytes",
    "encode_string",
    "encode_var_len_int",
]

Result = TypeVar("Result")

LATE_S: Final = 5.0
"""So much longer than its timeout we wait for the end of a request that outlived its connection."""
_U16: Final = Number(2)
_U32: Final = Number(4)
_STRING: Final = Text()


class DisconnectReasonCode(IntEnum):
    """Why a client leaves, in the document's names."""

    NORMAL_DISCONNECTION = DisconnectReason.NORMAL
    NO_SUBSCRIPTION_EXISTED = DisconnectReason.NO_SUBSCRIPTION_EXISTED
    IMPLEMENTATION_SPECIFIC_ERROR = DisconnectReason.UNSPECIFIED
    KEEP_ALIVE_TIMEOUT = DisconnectReason.KEEP_ALIVE_TIMEOUT


class TBusClient:
    """One client of a broker at `ip` and `port`. `logging` prints what happens; errors are printed to
    standard error in any case. `bulking` gathers messages into bulks, without waiting for them."""

    def __init__(self, client_id: str, ip: str, port: int, logging: bool = False, bulking: bool = True) -> None:
        self._client_id = client_id
        self._host = f"[{ip}]" if ":" in ip else ip
        self._port = port
        self._is_logging = logging
        self._bulk = "adaptive" if bulking else "off"
        self._bus: BlockingBus | None = None
        self._takers: dict[str, tuple[BlockingSubscription, BlockingService]] = {}
        self._requests: dict[int, BlockingRequest] = {}
        self._deadlines: dict[int, float] = {}

    def connect_to_broker(self, clean_start: bool = True, keep_alive: int = 60) -> None:
        """Raises `ConnectionFailed`, `ConnectRefused`. `clean_start` forgets requests sent before."""
        if self._bus is not None:
            raise UsageError("this client is connected; disconnect first")
        if clean_start:
            self._requests.clear()
            self._deadlines.clear()
        self._bus = BlockingBus(
            f"tbus://{self._host}:{self._port}",
            self._on_event,
            {
                "client_id": self._client_id,
                "clean_start": clean_start,
                "keep_alive_s": keep_alive,
                "bulk": self._bulk,
                "connect_timeout_s": REQUEST_TIMEOUT_S,
                "timeout_s": REQUEST_TIMEOUT_S,
            },
        )

    def subscribe(self, topic_filter: str, callback: Callable[[bytes], bytes | None]) -> None:
        """`callback` gets the payload of messages and requests, and returns that of the answer. A second
        subscription to the same filter replaces the first. Raises `SubscribeRefused`."""
        bus = self._connected()

        def handle(message: Message) -> bytes | None:
            return callback(message.payload)

        self._close(topic_filter)
        subscription = bus.subscribe(topic_filter, handle)
        self._takers[topic_filter] = subscription, bus.serve(topic_filter, handle)

    def unsubscribe(self, topic_filter: str) -> None:
        """Raises `UnsubscribeRefused`, also if there was no subscription."""
        if not self._close(topic_filter):
            self._connected().unsubscribe(topic_filter)

    def publish_message(self, topic: str, payload: bytes, priority: bool = False, timeout: int = 0) -> None:
        """With a `timeout` it waits so many seconds for a subscriber if there is none."""
        self._connected().publish(topic, payload, priority=priority, wait_s=timeout)

    def publish_request(self, topic: str, payload: bytes, priority: bool = False, timeout: float = 0) -> int:
        """Returns the request's packet id. Without a `timeout` it has 5 seconds."""
        timeout_s = timeout or REQUEST_TIMEOUT_S
        request = self._connected().ask(topic, payload, priority=priority, timeout=timeout_s)
        self._requests[request.id] = request
        self._deadlines[request.id] = time.monotonic() + timeout_s + LATE_S
        return request.id

    def await_and_process_response(self, request_id: int, callback: Callable[[bytes], Result]) -> Result:
        """What `callback` makes of the answer's payload. Raises `RequestFailed`: the type says how."""
        return callback(self._answer(request_id).payload)

    def cancel_request(self, request_id: int) -> None:
        request = self._requests.get(request_id)
        if request is None:
            raise UsageError(f"there is no request {request_id}")
        request.cancel()

    def disconnect(
        self, reason_code: DisconnectReasonCode = DisconnectReasonCode.NORMAL_DISCONNECTION, reason: str = ""
    ) -> None:
        """Subscriptions end. What becomes of unfinished requests is told to the next connection of this
        client, if that is not a clean start."""
        bus = self._connected()
        bus.disconnect(reason_code=int(reason_code), reason=reason)
        self._bus = None
        self._takers.clear()

    # --- helpers ----------------------------------------------------------------------------------

    def _connected(self) -> BlockingBus:
        if self._bus is None:
            raise BusClosed("this client is not connected: connect_to_broker first")
        return self._bus

    def _close(self, topic_filter: str) -> bool:
        takers = self._takers.pop(topic_filter, ())
        for taker in takers:
            taker.close()
        return bool(takers)

    def _answer(self, request_id: int) -> Message:
        request = self._requests.get(request_id)
        if request is None:
            raise UsageError(f"there is no request {request_id}")
        try:
            answer = request.result()
        except BusClosed:
            self._connected()  # or it can be asked for again
            answer = self._late_answer(request_id)
        finally:
            if self._bus is not None:
                self._requests.pop(request_id, None)
                self._deadlines.pop(request_id, None)
        return answer

    def _late_answer(self, request_id: int) -> Message:
        """Of a request whose connection was closed: its end comes over the next one."""
        left_s = self._deadlines[request_id] - time.monotonic()
        return self._connected().resume(request_id, timeout=max(0.001, left_s))

    def _on_event(self, event: BusEvent) -> None:
        is_error = isinstance(event, Disconnected | HandlerFailed | ServiceFailed) or (
            isinstance(event, Closed) and event.error is not None
        )
        if is_error:
            print(f"{self._client_id}: {event}", file=sys.stderr)
        elif self._is_logging:
            print(f"{self._client_id}: {event}")


# --- values in payloads ---------------------------------------------------------------------------


def encode_2_bytes(number: int) -> bytes:
    return _encoded(_U16, number)


def decode_2_bytes(data: bytes) -> int:
    return int(_decoded(_U16, data)[0])


def encode_4_bytes(number: int) -> bytes:
    return _encoded(_U32, number)


def decode_4_bytes(data: bytes) -> int:
    return int(_decoded(_U32, data)[0])


def encode_var_len_int(number: int) -> bytes:
    return encode_varint(number)


def decode_var_len_int(data: bytes) -> tuple[int, int]:
    """The number, and how many bytes it has."""
    try:
        return decode_varint(data, 0)
    except Wrong as wrong:
        raise UsageError(wrong.text) from None


def encode_string(value: object) -> bytes:
    """A length and UTF-8. What is no string is written as Python writes it: 42 becomes "42"."""
    return _encoded(_STRING, str(value))


def decode_string(data: bytes) -> tuple[str, int]:
    """The string, and how many bytes it has with its length."""
    value, size = _decoded(_STRING, data)
    return str(value), size


def _encoded(codec: Number | Text, value: int | str) -> bytes:
    try:
        return encode_value(codec, "the value", value)
    except Wrong as wrong:
        raise UsageError(wrong.text) from None


def _decoded(codec: Number | Text, data: bytes) -> tuple[int | str, int]:
    try:
        value, end = decode_value(codec, "the value", bytes(data), 0, len(data))
    except Wrong as wrong:
        raise UsageError(wrong.text) from None
    assert isinstance(value, int | str)
    return value, end
