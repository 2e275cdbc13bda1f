"""The data folder: one for all durable state, private to its owner, and of one broker at a time."""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final, Self

from polybus.errors import ConfigError, PolybusError

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600


class StoreError(PolybusError):
    """What is stored cannot be used or kept. The text names the file or folder and the remedy."""


class FolderError(StoreError, ConfigError):
    """The data folder cannot be used, or another process has it."""


class FileMoved(StoreError):
    """An open file is not in its place any more."""


class Place:
    """Where a file was when it was opened, and must stay while it is.

    Who removes or replaces it under a running broker takes away all that is written from then on: the broker
    writes into a file without a name, and the next one will find another, or none. The operating system says
    nothing, so we look.
    """

    __slots__ = ("_identity", "path")

    def __init__(self, path: Path, opened: os.stat_result) -> None:
        self.path = path
        self._identity = opened.st_dev, opened.st_ino

    @classmethod
    def of(cls, path: Path) -> Self:
        """Of a file that has just been opened. Raises OSError."""
        return cls(path, path.stat())

    def check(self) -> None:
        """Raises FileMoved."""
        try:
            there = os.stat(self.path)
        except OSError as error:
            raise FileMoved(f"{self.path} was removed while it is in use ({error.strerror})") from error
        if (there.st_dev, there.st_ino) != self._identity:
            raise FileMoved(f"{self.path} was replaced while it is in use")


def room_bytes(path: Path) -> int:
    """What may still be written there."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class DataFolder:
    """Holds the folder from construction until `close`, or until the process ends in any way.

    Raises FolderError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise FolderError(
                f"cannot use the data folder {path}: {error.strerror};"
                " choose another (--data-dir), or serve without one (--memory)"
            ) from error
        try:
            # The kernel lets go of it however the process ends, so a lock cannot outlive its broker.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            os.close(self._lock)
            by = f"process {holder}" if holder.isdigit() else "of unknown number"
            raise FolderError(
                f"the data folder {path} is in use by another broker ({by});"
                " stop it, or choose another folder (--data-dir)"
            ) from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def lock_place(self) -> Place:
        """Without its lock file the folder would be free for a second broker."""
        return Place(self.path / "lock", os.fstat(self._lock))

    def folder(self, *names: str) -> Path:
        """A folder inside, made if it is not there."""
        path = self.path
        for name in names:
            path /= name
            path.mkdir(mode=FOLDER_MODE, exist_ok=True)
        return path

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
