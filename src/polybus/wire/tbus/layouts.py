"""What each TBus message consists of: the tables of `docs/protocols/tbus.md` as code reads them.

The names are those of the page; errors use them. `field` is the name in `packets`.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

import msgspec

from polybus.wire.tbus.fields import Codec, Number, Rest, Text
from polybus.wire.tbus.packets import (
    Bulk,
    ConnAck,
    Connect,
    ConnectReason,
    Disconnect,
    DisconnectReason,
    MessageType,
    MsgAck,
    Packet,
    PingReq,
    PingResp,
    Publish,
    ReqAck,
    RequestState,
    SubAck,
    Subscribe,
    SubscribeReason,
    UnsubAck,
    Unsubscribe,
    UnsubscribeReason,
)


class Flag(msgspec.Struct, frozen=True):
    name: str
    field: str
    mask: int


class Field(msgspec.Struct, frozen=True):
    """A field by its place. With one of the flags in `absent_with` it is not there."""

    name: str
    field: str
    codec: Codec
    absent_with: int = 0


class PropertySpec(msgspec.Struct, frozen=True):
    name: str
    field: str
    codec: Codec
    allowed_in: frozenset[MessageType]


class Properties(Enum):
    """Whether a message has properties: an optional block is there if bytes are left for it."""

    NEVER = auto()
    OPTIONAL = auto()
    ALWAYS = auto()


class Layout(msgspec.Struct, frozen=True):
    """A message from its flags to its last byte.

    `rule` is the requirement that describes it, `needed` the properties that may not be absent,
    `exclusive` the flags that may not all be set.
    """

    build: Callable[..., Packet]
    rule: str
    flags: tuple[Flag, ...] = ()
    exclusive: int = 0
    head: tuple[Field, ...] = ()
    properties: Properties = Properties.NEVER
    needed: tuple[str, ...] = ()
    tail: tuple[Field, ...] = ()


ANY_TEXT: Final = Text()
TOPIC: Final = Text(may_hold_null=False, shortest=1)
TOPIC_FILTER: Final = Text(may_hold_null=False)
"""Of any length: the reply to an empty one is a SUBACK."""
CLIENT_ID: Final = Text(may_hold_null=False, shortest=1, longest=0xFFFF)
DESTINATION: Final = Text(may_hold_null=False)
U16: Final = Number(2)
U32: Final = Number(4)
ID: Final = Number(2, lowest=1)

REQUEST: Final = 0b0001
PRIORITY: Final = 0b0010
RESPONSE: Final = 0b0100

TIMEOUT: Final = 0x02
RESPONSE_DESTINATION: Final = 0x08
PACKET_ID: Final = 0x40

_CONNECT: Final = frozenset({MessageType.CONNECT})
_CONNACK: Final = frozenset({MessageType.CONNACK})
_PUBLISH: Final = frozenset({MessageType.PUBLISH})
_MSGACK: Final = frozenset({MessageType.MSGACK})
_REQACK: Final = frozenset({MessageType.REQACK})
_SUBSCRIBE: Final = frozenset({MessageType.SUBSCRIBE})
_EXPLAINED: Final = _CONNACK | _REQACK | {MessageType.SUBACK, MessageType.UNSUBACK, MessageType.DISCONNECT}

# in the order of the ids, which is the order in which they are written
PROPERTIES: Final[Mapping[int, PropertySpec]] = {
    TIMEOUT: PropertySpec("Timeout", "timeout_s", U32, _PUBLISH),
    RESPONSE_DESTINATION: PropertySpec(
        "ResponseDestination", "response_destination", DESTINATION, _PUBLISH | _REQACK
    ),
    0x16: PropertySpec("Token", "token", ANY_TEXT, _CONNECT),
    0x1C: PropertySpec("ServerReference", "server_reference", ANY_TEXT, _CONNACK),
    0x1F: PropertySpec("ReasonString", "reason_string", ANY_TEXT, _EXPLAINED),
    PACKET_ID: PropertySpec("PacketId", "packet_id", ID, _PUBLISH | _REQACK),
    0x41: PropertySpec("RequestState", "state", Number(1, meanings=RequestState), _REQACK),
    0x42: PropertySpec("TopicName", "topic", TOPIC, _MSGACK | _REQACK),
    0x43: PropertySpec("MessageId", "message_id", ID, _MSGACK),
    0x44: PropertySpec("Concurrency", "concurrency", U16, _SUBSCRIBE),
    0x45: PropertySpec("BulkLimit", "bulk_limit", U32, _CONNECT),
    0x46: PropertySpec("UserName", "user_name", ANY_TEXT, _CONNECT),
}

_ID_FIELD: Final = Field("packetId", "packet_id", ID)
_FILTER_FIELD: Final = Field("topicFilter", "topic_filter", TOPIC_FILTER)

LAYOUTS: Final[Mapping[MessageType, Layout]] = {
    MessageType.CONNECT: Layout(
        Connect,
        "TB-03",
        flags=(Flag("CleanStart", "clean_start", 0b0001), Flag("BrokerConnect", "is_broker", 0b0010)),
        head=(Field("keepAlive", "keep_alive_s", U16), Field("clientId", "client_id", CLIENT_ID)),
        properties=Properties.OPTIONAL,
    ),
    MessageType.CONNACK: Layout(
        ConnAck,
        "TB-03",
        head=(Field("reason", "reason", Number(1, meanings=ConnectReason)),),
        properties=Properties.ALWAYS,
    ),
    MessageType.PUBLISH: Layout(
        Publish,
        "TB-04",
        flags=(
            Flag("Request", "is_request", REQUEST),
            Flag("Priority", "is_priority", PRIORITY),
            Flag("Response", "is_response", RESPONSE),
        ),
        exclusive=REQUEST | RESPONSE,
        head=(Field("topicName", "topic", TOPIC, absent_with=RESPONSE),),
        properties=Properties.ALWAYS,
        tail=(Field("payload", "payload", Rest()),),
    ),
    MessageType.MSGACK: Layout(
        MsgAck, "TB-15", properties=Properties.ALWAYS, needed=("MessageId", "TopicName")
    ),
    MessageType.REQACK: Layout(
        ReqAck, "TB-07", properties=Properties.ALWAYS, needed=("PacketId", "RequestState")
    ),
    MessageType.BULK: Layout(Bulk, "TB-12", tail=(Field("messages", "body", Rest(shortest=1)),)),
    MessageType.SUBSCRIBE: Layout(
        Subscribe, "TB-05", head=(_ID_FIELD, _FILTER_FIELD), properties=Properties.OPTIONAL
    ),
    MessageType.SUBACK: Layout(
        SubAck,
        "TB-05",
        head=(_ID_FIELD,),
        properties=Properties.ALWAYS,
        tail=(Field("reason", "reason", Number(2, meanings=SubscribeReason)),),
    ),
    MessageType.UNSUBSCRIBE: Layout(Unsubscribe, "TB-05", head=(_ID_FIELD, _FILTER_FIELD)),
    MessageType.UNSUBACK: Layout(
        UnsubAck,
        "TB-05",
        head=(_ID_FIELD,),
        properties=Properties.ALWAYS,
        tail=(Field("reason", "reason", Number(2, meanings=UnsubscribeReason)),),
    ),
    MessageType.PINGREQ: Layout(PingReq, "TB-06"),
    MessageType.PINGRESP: Layout(PingResp, "TB-06"),
    MessageType.DISCONNECT: Layout(
        Disconnect,
        "TB-06",
        head=(Field("reason", "reason", Number(2, meanings=DisconnectReason)),),
        properties=Properties.OPTIONAL,
    ),
}
