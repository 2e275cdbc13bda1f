"""Numbers for what is answered: each is used once until its last answer has come."""

from typing import Final

MAX_PACKET_ID: Final = 0xFFFF


class PacketIds:
    """Ids for everything we send that is answered. An id is free again after its last answer."""

    def __init__(self, last: int = 0) -> None:
        self._in_use: set[int] = set()
        self._last = last % MAX_PACKET_ID

    @property
    def is_exhausted(self) -> bool:
        return len(self._in_use) >= MAX_PACKET_ID

    def take(self) -> int:
        """The next that is free; ask `is_exhausted` first."""
        while True:
            self._last = self._last % MAX_PACKET_ID + 1
            if self._last not in self._in_use:
                self._in_use.add(self._last)
                return self._last

    def release(self, packet_id: int) -> None:
        self._in_use.discard(packet_id)
