"""What a TBus broker may not take, and how a client finds out.

TBus acknowledges nothing and answers whatever is wrong with a DISCONNECT. So what may be too large is
followed by a ping (`tbus_output`): once that is answered, it was taken. When a connection ends, the first
that is without an answer is under suspicion, and after a second time given up: a request that cannot be
taken must not end connections for ever. After a DISCONNECT with an error all unfinished requests are
followed by pings, one by one and outside of BULKs, so that the one that is to blame is found.
"""

from collections.abc import Callable
from typing import Final

from polybus.client.errors import ClientError, ConnectionLost, NotDelivered, PublishRefused
from polybus.client.events import Completed, CoreEvent, Failed, ReturnAddress
from polybus.client.message import Message
from polybus.client.tbus_output import Output
from polybus.client.tbus_requests import Pending, Requests
from polybus.wire.tbus.packets import DisconnectReason

LARGE_BYTES: Final = 64 * 1024
"""From this size on a message is followed by a ping."""
STRIKES: Final = 2
WORDLESS_STRIKES: Final = 3
"""A connection may break by chance as well."""


class Doubts:
    def __init__(self, output: Output, requests: Requests, next_token: Callable[[], int]) -> None:
        self._output = output
        self._requests = requests
        self._next_token = next_token
        self._large: dict[int, Message | ReturnAddress] = {}  # messages and answers on their way, by token
        self._unwelcome: dict[ReturnAddress, str] = {}  # whose answers the broker does not take, and why
        self._last_words: str | None = None

    def confirm(self, large: Message | ReturnAddress) -> int:
        """A message, or an answer to someone, was just put out. The token completes when it was read."""
        token = self._next_token()
        self._large[token] = large
        self._output.put_ping(token)
        return token

    def needs_ping(self, pending: Pending, size: int) -> bool:
        return bool(pending.strikes) or size >= LARGE_BYTES

    def ping_answered(self) -> Completed | None:
        unanswered = self._output.unanswered
        if not unanswered:
            return None
        token = unanswered.popleft()
        if not unanswered:
            self._output.start_bulking()
        if isinstance(self._large.pop(token, None), Message):
            return Completed(token)
        if (pending := self._requests.get(token)) is not None:
            pending.strikes = 0
        return None

    def take_refusal(self, answer_to: ReturnAddress) -> str | None:
        """Why an answer to this request, which is given to us again, was not taken."""
        return self._unwelcome.pop(answer_to, None)

    @property
    def has_suspects(self) -> bool:
        return any(pending.strikes for pending in self._requests)

    def ended_with_an_error(self, words: str) -> None:
        """The broker said goodbye with an error; `judge` follows."""
        self._last_words = words

    def judge(self) -> list[CoreEvent]:
        """The connection is over. Who was being read when it ended, and what follows from that?"""
        events: list[CoreEvent] = []
        words, self._last_words = self._last_words, None
        first = next((token for token in self._output.unanswered if token), None)
        for token, large in self._large.items():
            is_culprit = words is not None and token == first
            if isinstance(large, Message):
                events.append(Failed(token, _loss(large, words if is_culprit else None)))
            elif is_culprit:
                self._unwelcome[large] = f"the broker does not take the answer: {words}"
        self._large.clear()
        if words is not None:
            self._output.bulk_less()
        for pending in self._requests:
            if pending.token == first:
                pending.strikes += 1
                if pending.strikes >= (STRIKES if words is not None else WORDLESS_STRIKES):
                    self._requests.remove(pending)
                    if not pending.is_canceled:
                        events.append(_given_up(pending, words))
            elif words is not None and pending.was_sent and not pending.strikes:
                pending.strikes = 1
        return events


def _loss(message: Message, words: str | None) -> ClientError:
    if words is not None:
        return PublishRefused(message.topic, DisconnectReason.UNSPECIFIED, words)
    return ConnectionLost(f"a message of {len(message.payload)} bytes may not have arrived")


def _given_up(pending: Pending, words: str | None) -> Failed:
    size = len(pending.message.payload)
    text = words or f"the connection broke each time it was sent; are {size} bytes too large?"
    return Failed(pending.token, NotDelivered(pending.message.topic, f"the broker does not take it: {text}"))
