"""Requesters and services that speak MQTT 5.0, in memory.

asker, worker = requester(world), service(world)
ask(asker, b"14")
answer(worker, given(worker), b"42")
assert ends(asker) == [("answered", b"42")]
"""

from typing import Any

from polybus.wire.mqtt.packets import (
    V5,
    Properties,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from tests.session.harness import Peer, World

NO_SERVICE = b"no service is subscribed to this topic"
JOBS = "jobs/one"
ANSWERS = "answers/asker"


def requester(world: World, client_id: str = "asker", *, qos: int = 2, **fields: Any) -> Peer:
    peer = world.connect(client_id, V5, **fields)
    assert peer.subscribe(ANSWERS, qos=qos) == (qos,)
    return peer


def service(world: World, client_id: str = "worker", takes: str = "1", on: str = JOBS, **fields: Any) -> Peer:
    peer = world.connect(client_id, V5, **fields)
    assert serve(peer, on, takes).reason_codes == (0,)
    return peer


def serve(peer: Peer, topic_filter: str, takes: str) -> SubAck:
    offer = Properties(user_properties=(("polybus-service", takes),))
    peer.send(Subscribe(peer.new_id(), (SubscriptionRequest(topic_filter),), offer))
    return peer.take(SubAck)[0]


def said(how: str, **more: Any) -> Properties:
    """What a requester says beside its payload."""
    pairs = (("polybus-request", how), *more.pop("user_properties", ()))
    more = {"response_topic": ANSWERS, "correlation_data": b"c", **more}
    return Properties(user_properties=pairs, **more)


def ask(
    peer: Peer,
    payload: bytes = b"?",
    how: str = "managed",
    *,
    topic: str = JOBS,
    qos: int = 1,
    **more: Any,
) -> None:
    peer.publish(topic, payload, qos=qos, properties=said(how, **more))


def cancel(peer: Peer, *, topic: str = JOBS, correlation_data: bytes | None = b"c") -> int:
    """The reason code of its acknowledgement."""
    ask(peer, b"", "cancel", topic=topic, response_topic=None, correlation_data=correlation_data)
    return peer.take(PubAck)[-1].reason_code


def given(peer: Peer) -> Publish:
    """The one request that came to this service."""
    (request,) = peer.take(Publish)
    return request


def answer(peer: Peer, request: Publish, payload: bytes = b"!", *, qos: int = 1, **more: Any) -> PubAck | None:
    """Its acknowledgement, if it has one."""
    topic = request.properties.response_topic
    assert topic is not None
    more.setdefault("correlation_data", request.properties.correlation_data)
    peer.publish(topic, payload, qos=qos, properties=Properties(**more))
    return peer.take(PubAck)[0] if qos == 1 else None


def fail(peer: Peer, request: Publish, why: bytes) -> PubAck | None:
    return answer(peer, request, why, user_properties=(("polybus-status", "error"),))


def status(end: Publish) -> str:
    (found,) = [value for name, value in end.properties.user_properties if name == "polybus-status"]
    return found


def ends(peer: Peer) -> list[tuple[str, bytes]]:
    """How its requests ended, as far as it was told."""
    return [(status(p), p.payload) for p in peer.receive_all()]


def how(packet: Publish) -> str:
    """Of a request, as a service sees it."""
    return dict(packet.properties.user_properties)["polybus-request"]


def refused(acknowledgement: PubAck | PubRec | None) -> int:
    assert acknowledgement is not None
    assert acknowledgement.reason_code >= 0x80
    return acknowledgement.reason_code
