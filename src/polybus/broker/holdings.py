"""What queues and windows hold, for the memory budget: a payload once, however many sessions wait for it.

Each message or run counts those who hold it: it is paid for with the first and free with the last. Each of them
costs `OVERHEAD_BYTES` besides, and so does each message of a run in flight, which has an entry of its own.
"""

from polybus.broker.message import OVERHEAD_BYTES, Message, Run


class Holdings:
    """`size_bytes` is the sum. Where a call for each would be slow its owner (`Flow`) changes it itself."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0

    def take(self, body: Message | Run, messages: int = 1) -> None:
        """Another one holds this."""
        if not body.holders:
            self.size_bytes += body.body_bytes()
        body.holders += 1
        self.size_bytes += messages * OVERHEAD_BYTES

    def take_all(self, message: Message, holders: int, size_bytes: int) -> None:
        """So many more hold this, which has this size: the caller knows it."""
        if not message.holders:
            self.size_bytes += size_bytes - OVERHEAD_BYTES
        message.holders += holders
        self.size_bytes += holders * OVERHEAD_BYTES

    def give(self, body: Message | Run, messages: int = 1) -> None:
        """One of them holds it no more."""
        body.holders -= 1
        self.size_bytes -= messages * OVERHEAD_BYTES
        if not body.holders:
            self.size_bytes -= body.body_bytes()

    def shrink(self, messages: int) -> None:
        """So many messages of a run in flight are settled, and others are not."""
        self.size_bytes -= messages * OVERHEAD_BYTES
