"""Requests in the words of MQTT 5.0 (docs/requests.md): as a requester and as a service.

A request is a PUBLISH of QoS 1 with a Response Topic and Correlation Data; `polybus-request` asks the
broker to manage it. A broker that knows nothing of that passes it on, and a service answers as MQTT 5.0
says: then there is no `polybus-status`, and what comes is the answer. Either way the deadline is kept here.

Unfinished requests outlive connections. QoS 1 sends again what the broker has not acknowledged; what it
had acknowledged is sent again only if it has lost our session, and the request with it.
"""

import math
from collections.abc import Iterator
from typing import Final

import msgspec

from polybus.client.deadlines import Deadlines
from polybus.client.errors import (
    NotDelivered,
    RequestCanceled,
    RequestDeleted,
    RequestFailed,
    RequestTimeout,
    ServiceError,
)
from polybus.client.events import Completed, Failed, ReturnAddress, Unclaimed
from polybus.client.message import Message
from polybus.errors import UsageError
from polybus.wire.mqtt.packets import NO_PROPERTIES, Properties, Publish

REQUEST: Final = "polybus-request"
MESSAGE: Final = "polybus-message"
SERVICE: Final = "polybus-service"
STATUS: Final = "polybus-status"
CANCEL: Final = "cancel"
ERROR: Final = "error"
MANAGED_ANSWERS: Final = "$polybus/answers/"
"""How the Response Topics begin that a managing broker gives to services."""
OWN_ANSWERS: Final = "polybus/answers"
GRACE_S: Final = 0.5
"""So much longer than its timeout we wait for the broker to say that it timed out."""
MAX_EXPIRY_S: Final = 0xFFFF_FFFF

ENDS: Final[dict[str, type[RequestFailed]]] = {
    "canceled": RequestCanceled,
    "deleted": RequestDeleted,
    "timed-out": RequestTimeout,
    "not-delivered": NotDelivered,
    ERROR: ServiceError,
}
"""By `polybus-status`; with any other word, or none, what came is the answer."""


class Call(msgspec.Struct):
    """One unfinished request of ours."""

    token: int
    key: bytes
    message: Message
    timeout_s: float
    deadline: float
    may_wait: bool
    was_sent: bool = False
    is_acknowledged: bool = False


class Calls:
    """`run` makes our Correlation Data different from that of every other run of this client."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._by_token: dict[int, Call] = {}
        self._by_key: dict[bytes, Call] = {}
        self._deadlines = Deadlines()
        self.next_deadline = self._deadlines.next

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._by_token.values()))

    def __len__(self) -> int:
        return len(self._by_token)

    def get(self, token: int) -> Call | None:
        return self._by_token.get(token)

    def add(self, token: int, message: Message, timeout_s: float, may_wait: bool, now: float) -> Call:
        call = Call(
            token, b"%b-%x" % (self._run.encode(), token), message, timeout_s, now + timeout_s, may_wait
        )
        self._by_token[token] = self._by_key[call.key] = call
        self._deadlines.set(token, call.deadline + GRACE_S)
        return call

    def remove(self, call: Call) -> None:
        del self._by_token[call.token]
        del self._by_key[call.key]
        self._deadlines.settle(call.token)

    def due(self, now: float) -> list[Call]:
        return [self._by_token[token] for token in self._deadlines.due(now)]

    def ended(self, publish: Publish) -> Completed | Failed | Unclaimed | None:
        """What came to our Response Topic."""
        key = publish.properties.correlation_data
        call = self._by_key.get(key) if key is not None else None
        if call is None:
            # Canceled or timed out meanwhile, if it is ours; else an earlier run asked.
            is_ours = key is not None and key.startswith(self._run.encode())
            return None if is_ours else Unclaimed(0, _message(publish, publish.topic))
        self.remove(call)
        topic = call.message.topic
        kind = ENDS.get(dict(publish.properties.user_properties).get(STATUS, ""))
        if kind is None:
            return Completed(call.token, _message(publish, topic))
        return Failed(call.token, kind(topic, publish.payload.decode(errors="replace")))


def request_packet(call: Call, response_topic: str, now: float) -> Publish:
    message = call.message
    words = ["managed", *["priority"] * message.priority, *["waiting"] * call.may_wait]
    properties = msgspec.structs.replace(
        message.properties,
        message_expiry_s=min(max(1, math.ceil(call.deadline - now)), MAX_EXPIRY_S),
        response_topic=response_topic,
        correlation_data=call.key,
        user_properties=(*message.properties.user_properties, (REQUEST, ", ".join(words))),
    )
    return Publish(message.topic, message.payload, 1, properties=properties)


def cancel_packet(call: Call, response_topic: str) -> Publish:
    """With the Response Topic, so that a service behind a broker that does not manage finds it too."""
    properties = Properties(
        response_topic=response_topic, correlation_data=call.key, user_properties=((REQUEST, CANCEL),)
    )
    return Publish(call.message.topic, b"", 1, properties=properties)


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
    """Where our answers come. `run` is empty for a client whose session is kept from run to run."""
    if response_information:
        return "/".join([response_information.rstrip("/"), *[run] * bool(run)])
    # As one level: a client id may hold anything.
    name = "".join("_" if character in "/+#" else character for character in client_id)
    return "/".join([OWN_ANSWERS, name, *[run] * bool(run)])


def given(publish: Publish) -> str | None:
    """What a broker says of a request it gives to a service, or a requester that cancels: a word of
    `polybus-request`."""
    for name, value in publish.properties.user_properties:
        if name == REQUEST:
            return value
    return None


def _message(publish: Publish, topic: str) -> Message:
    pairs = publish.properties.user_properties
    foreign = tuple(pair for pair in pairs if pair[0] != STATUS)
    properties = msgspec.structs.replace(
        publish.properties,
        user_properties=foreign,
        correlation_data=None,
        subscription_identifiers=(),
        topic_alias=None,
    )
    properties = NO_PROPERTIES if properties == NO_PROPERTIES else properties
    return Message(topic, publish.payload, publish.qos, properties=properties)
