"""What a TBus client has to send: two lanes (TB-11), BULKs (TB-12), and pings that tell what has arrived.

TBus acknowledges nothing and answers whatever is wrong with a DISCONNECT. A ping behind a message shows
that the broker has read the message: `PINGRESP`s come in the order of the pings. So when a connection
ends, the first ping without a response tells which message the broker may have stumbled over.
"""

from collections import deque
from typing import Final

from polybus.session.tbus.bulking import Bulker, bulker
from polybus.session.tbus.options import BulkMode
from polybus.wire.tbus.codec import encode
from polybus.wire.tbus.packets import PingReq

BULK_BYTES: Final = 64 * 1024
"""The largest BULK we send: brokers do not say what they take."""
LEAST_BULK_BYTES: Final = 512
PING: Final = encode(PingReq())
KEEP_ALIVE: Final = 0
"""What a ping is for that is for no message."""


class Output:
    def __init__(self, mode: BulkMode) -> None:
        self._mode: BulkMode = mode
        self._bulk_bytes = BULK_BYTES
        self._bulker: Bulker | None = None
        self._urgent: list[bytes] = []
        self._regular: list[bytes] = []
        self._size = 0
        self._pings: list[int] = []
        self.unanswered: deque[int] = deque()
        """What the pings are for that were sent and not answered."""

    @property
    def size(self) -> int:
        """Bytes that wait; at least 1 while the bulker holds some back."""
        return self._size or (self._bulker is not None and self._bulker.deadline is not None)

    @property
    def deadline(self) -> float | None:
        return None if self._bulker is None else self._bulker.deadline

    def clear(self) -> None:
        """The connection is gone, and what was to go over it."""
        self._urgent.clear()
        self._regular.clear()
        self._pings.clear()
        self.unanswered.clear()
        self._size = 0
        self._bulker = None

    def start_bulking(self) -> None:
        if self._bulker is None and self._bulk_bytes >= LEAST_BULK_BYTES:
            self._bulker = bulker(self._mode, self._bulk_bytes)

    def bulk_less(self) -> None:
        """The broker found something wrong: perhaps our BULKs are larger than what it takes."""
        self._bulk_bytes //= 8

    def put(self, frame: bytes, is_urgent: bool = False) -> None:
        (self._urgent if is_urgent else self._regular).append(frame)
        self._size += len(frame)

    def put_ping(self, token: int = KEEP_ALIVE) -> None:
        self.put(PING)
        self._pings.append(token)

    def take(self, now: float) -> bytes:
        pieces = self._regular
        if self._urgent:
            pieces = self._urgent + pieces
            self._urgent = []
        self._regular = []
        self._size = 0
        if self._pings:
            self.unanswered += self._pings
            self._pings.clear()
        if self._bulker is not None:
            pieces = self._bulker.pass_on(pieces, now)
        return b"".join(pieces)

    def stop_bulking(self) -> None:
        """From here on everything goes as it is, also what was being gathered."""
        if self._bulker is not None:
            gathered = self._bulker.take_back()
            self._regular[:0] = gathered
            self._size += sum(map(len, gathered))
            self._bulker = None
