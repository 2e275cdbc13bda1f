"""Our requests over MQTT 5.0, from `add` to their end. They outlive connections.

A request is a PUBLISH of QoS 1 with a Response Topic and Correlation Data; `polybus-request` asks the
broker to manage it. A broker that knows nothing of that passes it on, and a service answers as MQTT 5.0
says: then there is no `polybus-status`, and what comes is the answer. Either way the deadline is kept here.

QoS 1 sends again what the broker has not acknowledged; what it had acknowledged is sent again only if it
has lost our session, and the request with it.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from polybus.client.deadlines import Deadlines
from polybus.client.errors import (
    ClientError,
    NotDelivered,
    PublishRefused,
    RequestCanceled,
    RequestDeleted,
    RequestFailed,
    RequestTimeout,
    ServiceError,
    SubscribeRefused,
)
from polybus.client.events import Completed, CoreEvent, Failed, ReturnAddress, Unclaimed
from polybus.client.message import Message, SubscribeOptions
from polybus.client.mqtt_inflight import Outbox
from polybus.client.mqtt_settings import MqttSettings
from polybus.client.mqtt_words import (
    ERROR,
    STATUS,
    answer_message,
    answers_topic,
    cancel_packet,
    request_packet,
)
from polybus.client.subscribing import Subscribing
from polybus.wire.mqtt.packets import PubAck, Publish, ReasonCode

GRACE_S: Final = 0.5
"""So much longer than its timeout we wait for the broker to say that it timed out."""
ANSWERS: Final = -1
"""The token of the subscription to our answers, which nobody waits for."""

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
    """Requests go out through `outbox`; the first one has `subscribing` ask for the answers."""

    def __init__(
        self, settings: MqttSettings, outbox: Outbox, subscribing: Subscribing, next_token: Callable[[], int]
    ) -> None:
        self._run = settings.run.encode()
        self._topic_run = settings.run if settings.clean_start else ""
        self._outbox = outbox
        self._subscribing = subscribing
        self._next_token = next_token
        self._by_token: dict[int, Call] = {}
        self._by_key: dict[bytes, Call] = {}
        self._deadlines = Deadlines()
        self.next_deadline = self._deadlines.next
        self.topic = ""
        """Where the answers come; empty before the first request."""
        self._next_topic = ""

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._by_token.values()))

    def get(self, token: int) -> Call | None:
        return self._by_token.get(token)

    def welcomed(self, client_id: str, response_information: str | None) -> None:
        """A broker told us who we are, and perhaps where it wants our answers."""
        self._next_topic = answers_topic(client_id, self._topic_run, response_information)

    def add(self, message: Message, timeout_s: float, may_wait: bool, now: float) -> Call:
        token = self._next_token()
        call = Call(token, b"%b-%x" % (self._run, token), message, timeout_s, now + timeout_s, may_wait)
        self._by_token[token] = self._by_key[call.key] = call
        self._deadlines.set(token, call.deadline + GRACE_S)
        return call

    def remove(self, call: Call) -> None:
        del self._by_token[call.token]
        del self._by_key[call.key]
        self._deadlines.settle(call.token)

    def packet(self, call: Call, now: float) -> Publish:
        to = ReturnAddress(self.topic or self._next_topic or "not known yet", call.key)
        return request_packet(call.message, to, call.deadline - now, may_wait=call.may_wait)

    def send(self, call: Call, now: float) -> None:
        """The broker reads the SUBSCRIBE for the answers before the first request."""
        if not self.topic:
            self.topic = self._next_topic
            self._subscribing.subscribe(ANSWERS, SubscribeOptions(self.topic, 1))
        call.was_sent = True
        call.is_acknowledged = False
        self._outbox.submit(call.token, self.packet(call, now))

    def cancel(self, call: Call) -> bool:
        """Nobody waits for it any more. True if the broker has to do with it."""
        self.remove(call)
        if not call.was_sent or self._outbox.withdraw(call.token):
            return False
        cancel = cancel_packet(call.message.topic, ReturnAddress(self.topic, call.key))
        self._outbox.submit(self._next_token(), cancel)
        return True

    def due(self, now: float) -> list[CoreEvent]:
        """Those whose time is over although the broker said nothing."""
        events: list[CoreEvent] = []
        for token in self._deadlines.due(now):
            call = self._by_token[token]
            text = f"no answer within {call.timeout_s:g} s"
            if not call.was_sent:
                text += "; it was not sent, for there was no connection"
            events.append(Failed(token, RequestTimeout(call.message.topic, text)))
            self.cancel(call)
        return events

    def resume(self, now: float, *, session_present: bool) -> int:
        """A new connection. Returns how many are sent again that the broker had acknowledged."""
        again = 0
        for call in self:
            if not call.was_sent or (call.is_acknowledged and not session_present):
                again += call.was_sent
                self.send(call, now)
        return again

    @property
    def unacknowledged(self) -> int:
        """How many the outbox sends again by itself."""
        return sum(call.was_sent and not call.is_acknowledged for call in self._by_token.values())

    # --- how they end -----------------------------------------------------------------------------

    def ended(self, publish: Publish) -> Completed | Failed | Unclaimed | None:
        """What came to our Response Topic."""
        key = publish.properties.correlation_data
        call = self._by_key.get(key) if key is not None else None
        if call is None:
            # Canceled or timed out meanwhile, if it is ours; else an earlier run asked.
            is_ours = key is not None and key.startswith(self._run)
            return None if is_ours else Unclaimed(0, answer_message(publish, publish.topic))
        self.remove(call)
        topic = call.message.topic
        status = dict(publish.properties.user_properties).get(STATUS, "")
        kind = ENDS.get(status)
        if kind is None:
            return Completed(call.token, answer_message(publish, topic))
        reason = publish.payload.decode(errors="replace") or f"it ended as {status}"
        return Failed(call.token, kind(topic, reason))

    def acknowledged(self, call: Call, packet: PubAck, refusal: ClientError | None) -> Failed | None:
        """The broker has taken a request: that is not its end, unless it refused it."""
        call.is_acknowledged = True
        if isinstance(refusal, PublishRefused):
            return self._not_delivered(call, refusal.reason)
        if packet.reason_code == ReasonCode.NO_MATCHING_SUBSCRIBERS and not call.may_wait:
            return self._not_delivered(call, "nobody is subscribed to this topic")
        return None

    def not_sent(self, token: int, error: PublishRefused) -> Failed:
        """A publish, which may be a request, exceeds what this broker takes."""
        call = self._by_token.get(token)
        return Failed(token, error) if call is None else self._not_delivered(call, error.reason)

    def without_answers(self, error: ClientError) -> list[CoreEvent]:
        """If it is the answers that we may not have, no request can succeed."""
        if not isinstance(error, SubscribeRefused) or error.topic_filter != self.topic:
            return []
        self.topic = ""
        return [self._not_delivered(call, str(error)) for call in self]

    def _not_delivered(self, call: Call, reason: str) -> Failed:
        self.remove(call)
        return Failed(call.token, NotDelivered(call.message.topic, reason))
