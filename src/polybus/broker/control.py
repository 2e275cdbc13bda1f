"""Topics by which the broker itself is told things while it runs.

`$memoryLimit` (TB-13) takes a number of messages as text, plain or as the document's encoded string (a
length, then the text); `$memoryLimit/bytes` takes bytes. With an empty payload nothing changes. As a
request, the answer says what holds now; as a message, it just takes effect.
"""

from typing import Final

import msgspec

from polybus.broker import events
from polybus.broker.events import emit
from polybus.broker.message import Message
from polybus.broker.storage import Storage
from polybus.broker.subscriptions import Control
from polybus.errors import UsageError

MEMORY_LIMIT: Final = "$memoryLimit"
MEMORY_LIMIT_BYTES: Final = "$memoryLimit/bytes"
MAX_LIMIT: Final = 1 << 40


class StorageControl:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def topics(self) -> dict[str, Control]:
        return {MEMORY_LIMIT: self.set_messages, MEMORY_LIMIT_BYTES: self.set_bytes}

    def set_messages(self, message: Message) -> bytes:
        limit = _number(message.payload)
        if limit is not None:
            self._set(limit, self._storage.max_bytes, message.origin)
        return self._status()

    def set_bytes(self, message: Message) -> bytes:
        limit = _number(message.payload)
        if limit is not None:
            self._set(self._storage.max_messages, limit, message.origin)
        return self._status()

    def _set(self, max_messages: int, max_bytes: int, client_id: str) -> None:
        self._storage.set_limits(max_messages, max_bytes)
        reason = f"{max_messages} messages, {max_bytes} bytes"
        emit(events.STORAGE_LIMIT_CHANGED, client_id=client_id, reason=reason)

    def _status(self) -> bytes:
        storage = self._storage
        return msgspec.json.encode(
            {
                "messages": {"limit": storage.max_messages, "used": storage.count},
                "bytes": {"limit": storage.max_bytes, "used": storage.size_bytes},
            }
        )


def _number(payload: bytes) -> int | None:
    """None: nothing is to be changed. Raises UsageError."""
    if not payload:
        return None
    text = payload[1:] if payload[0] == len(payload) - 1 else payload
    if not text.isdigit() or len(text) > 13 or int(text) > MAX_LIMIT:
        raise UsageError(f"a limit is a whole number from 0 to {MAX_LIMIT}, as text, not {payload[:20]!r}")
    return int(text)
