"""SUBSCRIBE and UNSUBSCRIBE under way, and the subscriptions that the broker granted.

Both outlive connections: a request that was not answered is sent again, and what was granted is
asked for again when the broker did not keep the session.
"""

from collections import deque
from typing import Final

import msgspec

from polybus.client.errors import SubscribeRefused, UnsubscribeRefused
from polybus.client.events import Completed, CoreEvent, Failed, RenewalRefused
from polybus.client.message import SubscribeOptions
from polybus.client.mqtt_inflight import PacketIds
from polybus.client.mqtt_reasons import describe_reason, is_refusal
from polybus.errors import PeerError
from polybus.wire.mqtt.packets import (
    NO_PROPERTIES,
    Properties,
    ReasonCode,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)

RENEWAL: Final = 0
"""The token of a SUBSCRIBE that nobody waits for."""


class Request(msgspec.Struct, frozen=True):
    """A SUBSCRIBE if it has options, else an UNSUBSCRIBE. One filter each: an identifier counts for
    a whole SUBSCRIBE."""

    token: int
    topic_filter: str
    options: SubscribeOptions | None = None


class Requests:
    def __init__(self, packet_ids: PacketIds) -> None:
        self._packet_ids = packet_ids
        self._waiting: deque[Request] = deque()
        self._sent: dict[int, Request] = {}
        self._granted: dict[str, SubscribeOptions] = {}

    def subscribe(self, token: int, options: SubscribeOptions) -> None:
        self._waiting.append(Request(token, options.topic_filter, options))

    def unsubscribe(self, token: int, topic_filter: str) -> None:
        self._granted.pop(topic_filter, None)
        self._waiting.append(Request(token, topic_filter))

    def withdraw(self, token: int) -> bool:
        """Take back a request that waits for a connection."""
        for request in self._waiting:
            if request.token == token:
                self._waiting.remove(request)
                return True
        return False

    def pause(self) -> None:
        """No connection: nothing that was sent will be answered."""
        for packet_id in self._sent:
            self._packet_ids.release(packet_id)
        unanswered = [request for request in self._sent.values() if request.token != RENEWAL]
        self._waiting.extendleft(reversed(unanswered))
        self._sent.clear()

    def renew(self) -> tuple[str, ...]:
        """The broker forgot the session: ask again for all it had granted."""
        renewals = [Request(RENEWAL, options.topic_filter, options) for options in self._granted.values()]
        self._waiting.extendleft(reversed(renewals))
        return tuple(self._granted)

    def next_to_send(self, *, with_identifiers: bool) -> Subscribe | Unsubscribe | None:
        if not self._waiting or self._packet_ids.is_exhausted:
            return None
        packet_id = self._packet_ids.take()
        self._sent[packet_id] = request = self._waiting.popleft()
        if request.options is None:
            return Unsubscribe(packet_id, (request.topic_filter,))
        return subscribe_packet(packet_id, request.options, with_identifier=with_identifiers)

    def answered(self, packet: SubAck | UnsubAck) -> CoreEvent:
        request = self._sent.pop(packet.packet_id, None)
        is_suback = isinstance(packet, SubAck)
        if request is None or is_suback != (request.options is not None):
            raise PeerError(ReasonCode.PROTOCOL_ERROR, f"{type(packet).__name__} answers nothing we asked")
        self._packet_ids.release(packet.packet_id)
        # Before 5.0 an UNSUBACK holds no reason codes.
        reason_code = packet.reason_codes[0] if packet.reason_codes else 0
        if is_refusal(reason_code):
            return self._refused(request, reason_code, packet.properties)
        if request.options is None:
            self._granted.pop(request.topic_filter, None)
        elif request.token != RENEWAL:
            self._granted[request.topic_filter] = request.options
        return Completed(request.token)

    def _refused(self, request: Request, reason_code: int, properties: Properties) -> CoreEvent:
        reason = describe_reason(reason_code, properties)
        if request.options is None:
            return Failed(request.token, UnsubscribeRefused(request.topic_filter, reason_code, reason))
        error = SubscribeRefused(request.topic_filter, reason_code, reason)
        if request.token == RENEWAL:
            self._granted.pop(request.topic_filter, None)
            return RenewalRefused(error)
        return Failed(request.token, error)


def subscribe_packet(packet_id: int, options: SubscribeOptions, *, with_identifier: bool) -> Subscribe:
    wanted = SubscriptionRequest(
        options.topic_filter,
        options.qos,
        options.no_local,
        options.retain_as_published,
        options.retain_handling,
    )
    properties = NO_PROPERTIES
    if with_identifier and options.identifier:
        properties = Properties(subscription_identifiers=(options.identifier,))
    return Subscribe(packet_id, (wanted,), properties)
