"""TBus messages as values: one class a message type, and the numbers that stand in them.

A field that is None is absent. `docs/protocols/tbus.md` says what the fields mean.
"""

from enum import IntEnum
from typing import TypeAlias

import msgspec


class MessageType(IntEnum):
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    MSGACK = 4
    REQACK = 5
    BULK = 6
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14


class ConnectReason(IntEnum):
    SUCCESS = 0
    UNSPECIFIED = 128
    MALFORMED = 129
    CLIENT_LIMIT_REACHED = 131
    CLIENT_ID_IN_USE = 132
    NOT_AUTHORIZED = 135


class SubscribeReason(IntEnum):
    SUCCESS = 0
    UNSPECIFIED = 128
    NOT_AUTHORIZED = 135
    INVALID_FILTER = 143
    TOO_MANY_SUBSCRIPTIONS = 151


class UnsubscribeReason(IntEnum):
    SUCCESS = 0
    NO_SUBSCRIPTION_EXISTED = 17
    UNSPECIFIED = 128
    INVALID_FILTER = 143


class DisconnectReason(IntEnum):
    NORMAL = 0
    NO_SUBSCRIPTION_EXISTED = 17
    UNSPECIFIED = 128
    KEEP_ALIVE_TIMEOUT = 141


class RequestState(IntEnum):
    DELIVERED = 2
    CANCELED = 6
    DELETED = 10
    TIMED_OUT = 11
    NOT_DELIVERED = 12
    ERROR = 13
    UNKNOWN = 14


class Connect(msgspec.Struct, frozen=True, gc=False):
    client_id: str
    keep_alive_s: int = 0
    clean_start: bool = False
    is_broker: bool = False
    token: str | None = None
    user_name: str | None = None
    bulk_limit: int | None = None

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Without the token: packets end up in logs."""
        hidden = {} if self.token is None else {"token": "..."}
        return list((msgspec.structs.asdict(self) | hidden).items())

    def __repr__(self) -> str:
        return f"Connect({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class ConnAck(msgspec.Struct, frozen=True, gc=False):
    reason: ConnectReason = ConnectReason.SUCCESS
    reason_string: str | None = None
    server_reference: str | None = None


class Publish(msgspec.Struct, frozen=True, gc=False):
    """A message, a request or an answer; an answer has no topic."""

    topic: str | None
    payload: bytes = b""
    is_request: bool = False
    is_response: bool = False
    is_priority: bool = False
    timeout_s: int | None = None
    response_destination: str | None = None
    packet_id: int | None = None


class MsgAck(msgspec.Struct, frozen=True, gc=False):
    message_id: int
    topic: str


class ReqAck(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    state: RequestState
    response_destination: str | None = None
    topic: str | None = None
    reason_string: str | None = None


class Bulk(msgspec.Struct, frozen=True, gc=False):
    """Messages one behind the other; `codec.frames` takes them apart."""

    body: bytes


class Subscribe(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    topic_filter: str
    concurrency: int | None = None


class SubAck(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    reason: SubscribeReason = SubscribeReason.SUCCESS
    reason_string: str | None = None


class Unsubscribe(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    topic_filter: str


class UnsubAck(msgspec.Struct, frozen=True, gc=False):
    packet_id: int
    reason: UnsubscribeReason = UnsubscribeReason.SUCCESS
    reason_string: str | None = None


class PingReq(msgspec.Struct, frozen=True, gc=False):
    pass


class PingResp(msgspec.Struct, frozen=True, gc=False):
    pass


class Disconnect(msgspec.Struct, frozen=True, gc=False):
    reason: DisconnectReason = DisconnectReason.NORMAL
    reason_string: str | None = None


Packet: TypeAlias = (
    Connect
    | ConnAck
    | Publish
    | MsgAck
    | ReqAck
    | Bulk
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
)
