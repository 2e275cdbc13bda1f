"""Hypothesis strategies for every TBus message.

Whatever they draw, `encode` accepts and `decode` gives back unchanged.
"""

from hypothesis import strategies as st

from polybus.wire.tbus.codec import encode
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

_LETTERS = st.characters(exclude_categories=["Cs"])
_NOT_NULL = st.characters(exclude_categories=["Cs"], exclude_characters="\0")

# now and then long enough that a length needs two bytes
texts = st.text(_LETTERS, max_size=20) | st.builds(lambda text: text * 150, _LETTERS)
names = st.text(_NOT_NULL, min_size=1, max_size=20) | st.builds(lambda text: text * 150, _NOT_NULL)
topic_filters = names | st.just("")
destinations = names | st.just("")
payloads = st.binary(max_size=200)
ids = st.integers(1, 0xFFFF)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)


def maybe(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


messages = st.builds(
    Publish,
    names,
    payloads,
    is_priority=st.booleans(),
    timeout_s=maybe(u32),
    response_destination=maybe(destinations),
    packet_id=maybe(ids),
)
requests = st.builds(
    Publish,
    names,
    payloads,
    is_request=st.just(True),
    is_priority=st.booleans(),
    timeout_s=maybe(u32),
    response_destination=maybe(destinations),
    packet_id=ids,
)
answers = st.builds(
    Publish,
    st.none(),
    payloads,
    is_response=st.just(True),
    is_priority=st.booleans(),
    timeout_s=maybe(u32),
    response_destination=destinations,
    packet_id=ids,
)
publishes = messages | requests | answers

_SINGLE: dict[MessageType, st.SearchStrategy[Packet]] = {
    MessageType.CONNECT: st.builds(
        Connect, names, u16, st.booleans(), st.booleans(), maybe(texts), maybe(texts), maybe(u32)
    ),
    MessageType.CONNACK: st.builds(ConnAck, st.sampled_from(ConnectReason), maybe(texts), maybe(texts)),
    MessageType.PUBLISH: publishes,
    MessageType.MSGACK: st.builds(MsgAck, ids, names),
    MessageType.REQACK: st.builds(
        ReqAck, ids, st.sampled_from(RequestState), maybe(destinations), maybe(names), maybe(texts)
    ),
    MessageType.SUBSCRIBE: st.builds(Subscribe, ids, topic_filters, maybe(ids)),
    MessageType.SUBACK: st.builds(SubAck, ids, st.sampled_from(SubscribeReason), maybe(texts)),
    MessageType.UNSUBSCRIBE: st.builds(Unsubscribe, ids, topic_filters),
    MessageType.UNSUBACK: st.builds(UnsubAck, ids, st.sampled_from(UnsubscribeReason), maybe(texts)),
    MessageType.PINGREQ: st.just(PingReq()),
    MessageType.PINGRESP: st.just(PingResp()),
    MessageType.DISCONNECT: st.builds(Disconnect, st.sampled_from(DisconnectReason), maybe(texts)),
}

bulkable = st.one_of(*(held for kind, held in _SINGLE.items() if kind is not MessageType.CONNECT))
"""What may stand in a BULK."""

bulks = st.lists(bulkable, min_size=1, max_size=4).map(lambda held: Bulk(b"".join(map(encode, held))))

PACKETS: dict[MessageType, st.SearchStrategy[Packet]] = {**_SINGLE, MessageType.BULK: bulks}
"""Messages by their type."""

packets = st.one_of(*PACKETS.values())
