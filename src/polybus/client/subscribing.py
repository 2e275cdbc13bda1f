"""SUBSCRIBE and UNSUBSCRIBE under way, and the subscriptions that the broker granted.

Both outlive connections: what was not answered is sent again, and what was granted is asked for again
when the broker did not keep the session. How a `Wish` is written is the protocol's affair.
"""

from collections import deque
from typing import Final

import msgspec

from polybus.client.errors import SubscribeRefused, UnsubscribeRefused
from polybus.client.events import Completed, CoreEvent, Failed, RenewalRefused
from polybus.client.message import SubscribeOptions
from polybus.client.packet_ids import PacketIds

RENEWAL: Final = 0
"""The token of a SUBSCRIBE that nobody waits for."""


class Wish(msgspec.Struct, frozen=True):
    """A SUBSCRIBE if it has options, else an UNSUBSCRIBE. One filter each: an identifier counts for
    a whole SUBSCRIBE."""

    token: int
    topic_filter: str
    options: SubscribeOptions | None = None


class Subscribing:
    def __init__(self, packet_ids: PacketIds) -> None:
        self._packet_ids = packet_ids
        self._waiting: deque[Wish] = deque()
        self._sent: dict[int, Wish] = {}
        self._granted: dict[str, SubscribeOptions] = {}

    def subscribe(self, token: int, options: SubscribeOptions) -> None:
        self._waiting.append(Wish(token, options.topic_filter, options))

    def unsubscribe(self, token: int, topic_filter: str) -> None:
        self._granted.pop(topic_filter, None)
        self._waiting.append(Wish(token, topic_filter))

    def withdraw(self, token: int) -> bool:
        """Take back a wish that waits for a connection."""
        for wish in self._waiting:
            if wish.token == token:
                self._waiting.remove(wish)
                return True
        return False

    def pause(self) -> None:
        """No connection: nothing that was sent will be answered."""
        for packet_id in self._sent:
            self._packet_ids.release(packet_id)
        unanswered = [wish for wish in self._sent.values() if wish.token != RENEWAL]
        self._waiting.extendleft(reversed(unanswered))
        self._sent.clear()

    def renew(self) -> tuple[str, ...]:
        """The broker forgot the session: ask again for all it had granted."""
        renewals = [Wish(RENEWAL, options.topic_filter, options) for options in self._granted.values()]
        self._waiting.extendleft(reversed(renewals))
        return tuple(self._granted)

    def next_to_send(self) -> tuple[int, Wish] | None:
        """What is asked for next, and the packet id to do it with."""
        if not self._waiting or self._packet_ids.is_exhausted:
            return None
        packet_id = self._packet_ids.take()
        self._sent[packet_id] = wish = self._waiting.popleft()
        return packet_id, wish

    def answered(self, packet_id: int, *, is_suback: bool, refusal: tuple[int, str] | None) -> CoreEvent | None:
        """`refusal` is the broker's reason code and reason. None: this answers nothing that we asked."""
        wish = self._sent.get(packet_id)
        if wish is None or is_suback != (wish.options is not None):
            return None
        del self._sent[packet_id]
        self._packet_ids.release(packet_id)
        if refusal is not None:
            return self._refused(wish, *refusal)
        if wish.options is None:
            self._granted.pop(wish.topic_filter, None)
        elif wish.token != RENEWAL:
            self._granted[wish.topic_filter] = wish.options
        return Completed(wish.token)

    def _refused(self, wish: Wish, reason_code: int, reason: str) -> CoreEvent:
        if wish.options is None:
            return Failed(wish.token, UnsubscribeRefused(wish.topic_filter, reason_code, reason))
        error = SubscribeRefused(wish.topic_filter, reason_code, reason)
        if wish.token == RENEWAL:
            self._granted.pop(wish.topic_filter, None)
            return RenewalRefused(error)
        return Failed(wish.token, error)
