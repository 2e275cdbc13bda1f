"""Requests, services, priority and waiting in the words of MQTT 5.0: docs/requests.md as packets."""

import math
from typing import Final

import msgspec

from polybus.client.events import ReturnAddress
from polybus.client.message import Message, SubscribeOptions
from polybus.client.service import MAX_CONCURRENCY
from polybus.errors import UsageError
from polybus.wire.mqtt.packets import NO_PROPERTIES, Properties, Publish, Subscribe, SubscriptionRequest

REQUEST: Final = "polybus-request"
MESSAGE: Final = "polybus-message"
SERVICE: Final = "polybus-service"
STATUS: Final = "polybus-status"
CANCEL: Final = "cancel"
ERROR: Final = "error"
MANAGED_ANSWERS: Final = "$polybus/answers/"
"""How the Response Topics begin that a managing broker gives to services."""
OWN_ANSWERS: Final = "polybus/answers"
MAX_EXPIRY_S: Final = 0xFFFF_FFFF


def request_packet(message: Message, to: ReturnAddress, left_s: float, *, may_wait: bool) -> Publish:
    assert isinstance(to.key, bytes)
    words = ["managed", *["priority"] * message.priority, *["waiting"] * may_wait]
    properties = msgspec.structs.replace(
        message.properties,
        message_expiry_s=min(max(1, math.ceil(left_s)), MAX_EXPIRY_S),
        response_topic=to.destination,
        correlation_data=to.key,
        user_properties=(*message.properties.user_properties, (REQUEST, ", ".join(words))),
    )
    return Publish(message.topic, message.payload, 1, properties=properties)


def cancel_packet(topic: str, to: ReturnAddress) -> Publish:
    """With the Response Topic, so that a service behind a broker that does not manage finds it too."""
    assert isinstance(to.key, bytes)
    properties = Properties(
        response_topic=to.destination, correlation_data=to.key, user_properties=((REQUEST, CANCEL),)
    )
    return Publish(topic, b"", 1, properties=properties)


def answer_packet(to: ReturnAddress, request: Message, payload: bytes, *, is_error: bool) -> Publish:
    """As safe as the request was; a managing broker gives requests at QoS 0."""
    assert not isinstance(to.key, int)
    properties = Properties(
        correlation_data=to.key,
        payload_format_indicator=1 if is_error else None,
        user_properties=((STATUS, ERROR),) if is_error else (),
    )
    return Publish(to.destination, payload, min(request.qos, 1), properties=properties)


def with_wishes(message: Message, wait_s: int) -> Properties:
    """The properties of a message that has priority, or may wait."""
    words = [*["priority"] * message.priority, *["waiting"] * bool(wait_s)]
    properties = message.properties
    if wait_s and properties.message_expiry_s not in (None, wait_s):
        raise UsageError(
            f"wait_s={wait_s} and message_expiry_s={properties.message_expiry_s}: a message waits until it"
            " expires; give one of them"
        )
    return msgspec.structs.replace(
        properties,
        message_expiry_s=wait_s or properties.message_expiry_s,
        user_properties=(*properties.user_properties, (MESSAGE, ", ".join(words))),
    )


def answers_topic(client_id: str, run: str, response_information: str | None) -> str:
    """Where our answers come: below what the broker asks us to use, if it does. `run` is empty for a
    client whose session is kept from run to run."""
    # As one level: a client id may hold anything.
    name = "".join("_" if character in "/+#" else character for character in client_id)
    below = (response_information or OWN_ANSWERS).rstrip("/")
    return "/".join([below, name, *[run] * bool(run)])


def given(publish: Publish) -> str | None:
    """What a broker says of a request it gives to a service, or a requester that cancels: a word of
    `polybus-request`."""
    for name, value in publish.properties.user_properties:
        if name == REQUEST:
            return value
    return None


def answer_message(publish: Publish, topic: str) -> Message:
    """An answer as its requester sees it: without what made it find its way."""
    pairs = publish.properties.user_properties
    properties = msgspec.structs.replace(
        publish.properties,
        user_properties=tuple(pair for pair in pairs if pair[0] != STATUS),
        correlation_data=None,
        subscription_identifiers=(),
        topic_alias=None,
    )
    properties = NO_PROPERTIES if properties == NO_PROPERTIES else properties
    return Message(topic, publish.payload, publish.qos, properties=properties)


def subscribe_packet(packet_id: int, options: SubscribeOptions, *, with_identifier: bool) -> Subscribe:
    wanted = SubscriptionRequest(
        options.topic_filter,
        options.qos,
        options.no_local,
        options.retain_as_published,
        options.retain_handling,
    )
    identifiers = (options.identifier,) if with_identifier and options.identifier else ()
    service = ((SERVICE, str(min(options.concurrency, MAX_CONCURRENCY))),) if options.concurrency else ()
    if not identifiers and not service:
        return Subscribe(packet_id, (wanted,), NO_PROPERTIES)
    properties = Properties(subscription_identifiers=identifiers, user_properties=service)
    return Subscribe(packet_id, (wanted,), properties)
