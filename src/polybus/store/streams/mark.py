"""How far a partition's records are there for good.

What is acknowledged belongs to a commit of the broker's state (`Ledger.logged`), and is in the log before
that: so a crash between the two leaves records that nobody was promised, and whose publishers will send them
again. Each batch says which commit it belongs to. Readers see nothing of it before that commit, and the next
start takes away what is behind the mark and belongs to a commit that the state does not have. So a record and
the state that says "received" are there together, or neither is (OP-01).

QoS 0 belongs to no commit and counts when it is written, unless it stands behind something that waits.

The mark is kept in a file beside the segments, for those who read the folder. It also keeps a state file that
is older than the log, such as a backup, from costing records that were seen: only what is behind the mark is in
doubt.
"""

import contextlib
import os
import threading
from collections import deque
from pathlib import Path
from typing import Final

from polybus.store.folder import StoreError
from polybus.store.streams.files import Files

MARK_FILE: Final = "mark"
_DIGITS: Final = 20


class Mark:
    """The writer tells what it wrote, whoever commits tells that; any thread reads `offset`."""

    def __init__(self, folder: Path, offset: int, files: Files) -> None:
        """Raises OSError."""
        path = folder / MARK_FILE
        files.replace(path, _encode(offset))
        self.offset = offset
        """The next offset, for readers."""
        self._waiting: deque[tuple[int, int]] = deque()
        """Numbers of commits, and the offset behind what belongs to each."""
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def written(self, offset: int, commit: int) -> None:
        """There are records up to this offset, the last of which belong to this commit, or (0) to none."""
        with self._lock:
            waiting = self._waiting
            if commit and (not waiting or waiting[-1][0] != commit):
                waiting.append((commit, offset))
            elif waiting:
                waiting[-1] = waiting[-1][0], offset
            else:
                self._show(offset)

    def committed(self, commit: int) -> bool:
        """This commit is done, and so are all before it. False: nothing new can be seen."""
        if not self._waiting:
            return False
        with self._lock:
            reached = None
            while self._waiting and self._waiting[0][0] <= commit:
                reached = self._waiting.popleft()[1]
            if reached is None:
                return False
            self._show(reached)
            return True

    def _show(self, offset: int) -> None:
        # With a disk in trouble other processes see it a moment later: it is written again with the next.
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _encode(offset), 0)
        self.offset = offset

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_mark(folder: Path) -> int | None:
    """None: there is none, so that everything there is counts. Raises StoreError."""
    path = folder / MARK_FILE
    try:
        before = path.read_bytes()
        while (found := path.read_bytes()) != before:  # it is just being written
            before = found
    except FileNotFoundError:
        return None
    if len(found) != _DIGITS + 1 or not found[:_DIGITS].isdigit():
        raise StoreError(
            f"{path} is no mark of {_DIGITS} digits; move it away, and everything in the log counts"
        )
    return int(found)


def _encode(offset: int) -> bytes:
    return b"%0*d\n" % (_DIGITS, offset)
