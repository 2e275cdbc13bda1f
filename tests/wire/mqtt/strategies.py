"""Hypothesis strategies for every MQTT packet that a version can say.

`packets(version)` is any packet, `packets_of(kind, version)` one type. Whatever they draw, `encode`
accepts and `decode` gives back unchanged. `examples` is how our tests ask for them.
"""

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from polybus.wire.mqtt.checks import REASON_CODES, RETURN_CODES
from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    V5,
    V31,
    V311,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from polybus.wire.mqtt.properties import BINARY, PAIR, PROPERTIES, STRING, TOPIC, WILL, PropertySpec, Value
from tests.examples import examples

Ack = PubAck | PubRec | PubRel | PubComp

VERSIONS = st.sampled_from((V31, V311, V5))

_LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
_TOPIC_LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0+#")

strings = st.text(_LETTERS, max_size=20)
binaries = st.binary(max_size=20)
payloads = st.binary(max_size=200)
packet_ids = st.integers(1, 0xFFFF)
qos = st.integers(0, 2)
topics = st.text(_TOPIC_LETTERS, min_size=1, max_size=20)

_LEVELS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), max_size=5), st.just("+")
)
topic_filters = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]),
    st.lists(_LEVELS, max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)
shared_filters = st.builds(
    lambda group, rest: f"$share/{group}/{rest}", st.from_regex(r"[a-z]{1,5}", fullmatch=True), topic_filters
)


def so_many(usually: int) -> settings:
    """Examples, however slow or busy the machine is."""
    return settings(max_examples=examples(usually), suppress_health_check=[HealthCheck.too_slow])


def property_values(spec: PropertySpec) -> st.SearchStrategy[Value]:
    """Values that this property may have."""
    if spec.codec is PAIR:
        return st.tuples(strings, strings)
    if spec.codec is STRING:
        return strings
    if spec.codec is TOPIC:
        return topics
    if spec.codec is BINARY:
        return binaries
    return st.integers(spec.lowest, spec.codec.highest)


@st.composite
def properties(draw: st.DrawFn, where: int, *needed: str) -> Properties:
    """The properties of a packet type, or of a will; those in `needed` are there."""
    allowed = {spec.name: spec for spec in PROPERTIES.values() if where in spec.allowed_in}
    names = draw(st.sets(st.sampled_from(sorted(allowed)), max_size=5)) | set(needed)
    if where == PacketType.CONNECT and "authentication_data" in names:
        names.add("authentication_method")
    values: dict[str, object] = {}
    for name in sorted(names):
        spec = allowed[name]
        if spec.repeatable_in:
            most = 4 if where in spec.repeatable_in else 1
            values[name] = tuple(draw(st.lists(property_values(spec), min_size=1, max_size=most)))
        else:
            values[name] = draw(property_values(spec))
    return Properties(**values) if values else NO_PROPERTIES  # type: ignore[arg-type]


def properties_in(version: int, where: int, *needed: str) -> st.SearchStrategy[Properties]:
    return properties(where, *needed) if version >= V5 else st.just(NO_PROPERTIES)


def reasons(version: int, kind: PacketType) -> st.SearchStrategy[int]:
    codes = REASON_CODES[kind] if version >= V5 else RETURN_CODES.get(kind, {0})
    return st.sampled_from(sorted(codes))


def wills(version: int) -> st.SearchStrategy[Will]:
    return st.builds(Will, topics, binaries, qos, st.booleans(), properties_in(version, WILL))


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    user_name = draw(st.none() | strings)
    may_have_password = version >= V5 or user_name is not None
    return Connect(
        client_id=draw(strings),
        version=version,
        clean_start=draw(st.booleans()),
        keep_alive_s=draw(st.integers(0, 0xFFFF)),
        will=draw(st.none() | wills(version)),
        user_name=user_name,
        password=draw(st.none() | binaries) if may_have_password else None,
        properties=draw(properties_in(version, PacketType.CONNECT)),
    )


@st.composite
def connacks(draw: st.DrawFn, version: int) -> ConnAck:
    reason_code = draw(reasons(version, PacketType.CONNACK))
    may_be_present = version > V31 and reason_code == 0
    return ConnAck(
        reason_code, may_be_present and draw(st.booleans()), draw(properties_in(version, PacketType.CONNACK))
    )


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    level = draw(qos)
    held = draw(properties_in(version, PacketType.PUBLISH))
    return Publish(
        topic=draw(topics | st.just("") if held.topic_alias is not None else topics),
        payload=draw(payloads),
        qos=level,
        retain=draw(st.booleans()),
        dup=draw(st.booleans()) if level else False,
        packet_id=draw(packet_ids) if level else 0,
        properties=held,
    )


def acks(
    version: int, kind: PacketType, build: Callable[[int, int, Properties], Ack]
) -> st.SearchStrategy[Ack]:
    return st.builds(build, packet_ids, reasons(version, kind), properties_in(version, kind))


@st.composite
def subscription_requests(draw: st.DrawFn, version: int) -> SubscriptionRequest:
    if version < V5:
        return SubscriptionRequest(draw(topic_filters), draw(qos))
    topic_filter = draw(topic_filters | shared_filters)
    may_be_no_local = not topic_filter.startswith("$share/")
    return SubscriptionRequest(
        topic_filter, draw(qos), may_be_no_local and draw(st.booleans()), draw(st.booleans()), draw(qos)
    )


def subscribes(version: int) -> st.SearchStrategy[Subscribe]:
    requests = st.lists(subscription_requests(version), min_size=1, max_size=4).map(tuple)
    return st.builds(Subscribe, packet_ids, requests, properties_in(version, PacketType.SUBSCRIBE))


def subacks(version: int) -> st.SearchStrategy[SubAck]:
    codes = st.lists(reasons(version, PacketType.SUBACK), min_size=1, max_size=4).map(tuple)
    return st.builds(SubAck, packet_ids, codes, properties_in(version, PacketType.SUBACK))


def unsubscribes(version: int) -> st.SearchStrategy[Unsubscribe]:
    filters = st.lists(topic_filters, min_size=1, max_size=4).map(tuple)
    return st.builds(Unsubscribe, packet_ids, filters, properties_in(version, PacketType.UNSUBSCRIBE))


def unsubacks(version: int) -> st.SearchStrategy[UnsubAck]:
    if version < V5:
        return st.builds(UnsubAck, packet_ids)
    codes = st.lists(reasons(version, PacketType.UNSUBACK), min_size=1, max_size=4).map(tuple)
    return st.builds(UnsubAck, packet_ids, codes, properties_in(version, PacketType.UNSUBACK))


def disconnects(version: int) -> st.SearchStrategy[Disconnect]:
    kind = PacketType.DISCONNECT
    return st.builds(Disconnect, reasons(version, kind), properties_in(version, kind))


def auths() -> st.SearchStrategy[Auth]:
    held = properties(PacketType.AUTH, "authentication_method")
    return st.just(Auth()) | st.builds(Auth, reasons(V5, PacketType.AUTH), held)


def packets_of(kind: PacketType, version: int) -> st.SearchStrategy[Packet]:
    """Packets of one type. There is no AUTH before 5.0."""
    match kind:
        case PacketType.CONNECT:
            return connects(version)
        case PacketType.CONNACK:
            return connacks(version)
        case PacketType.PUBLISH:
            return publishes(version)
        case PacketType.PUBACK:
            return acks(version, kind, PubAck)
        case PacketType.PUBREC:
            return acks(version, kind, PubRec)
        case PacketType.PUBREL:
            return acks(version, kind, PubRel)
        case PacketType.PUBCOMP:
            return acks(version, kind, PubComp)
        case PacketType.SUBSCRIBE:
            return subscribes(version)
        case PacketType.SUBACK:
            return subacks(version)
        case PacketType.UNSUBSCRIBE:
            return unsubscribes(version)
        case PacketType.UNSUBACK:
            return unsubacks(version)
        case PacketType.PINGREQ:
            return st.just(PingReq())
        case PacketType.PINGRESP:
            return st.just(PingResp())
        case PacketType.DISCONNECT:
            return disconnects(version)
        case PacketType.AUTH:
            return auths()


def kinds(version: int) -> list[PacketType]:
    """The packet types of a version."""
    return [kind for kind in PacketType if version >= V5 or kind is not PacketType.AUTH]


def packets(version: int) -> st.SearchStrategy[Packet]:
    """Any packet of a version."""
    return st.one_of(*(packets_of(kind, version) for kind in kinds(version)))
