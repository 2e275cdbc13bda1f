"""The few things that streams do to files, in one place: a test can make any of them fail."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from polybus.store.folder import FILE_MODE, FOLDER_MODE

_PROBE_BYTES: Final = 256 * 1024


class Files:
    """Raises OSError, as the system does."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)

    def create(self, path: Path, data: bytes) -> int:
        """A new file with this beginning, all of it or nothing; opened for writing behind that."""
        temporary = path.with_suffix(".new")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(temporary, flags, FILE_MODE)
        try:
            self.append(fd, [data])
            os.link(temporary, path)  # unlike a rename, never over a file that is there
        except BaseException:
            os.close(fd)
            raise
        finally:
            temporary.unlink()
        return fd

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    def append(self, fd: int, pieces: Sequence[bytes | memoryview]) -> None:
        left = list(pieces)
        while left:
            written = os.writev(fd, left)
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if left and written:
                left[0] = memoryview(left[0])[written:]

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def replace(self, path: Path, data: bytes) -> None:
        """Change a small file, all of it or nothing, and see to it that it is on the disk."""
        temporary = path.with_suffix(".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            self.append(fd, [data])
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        self.sync_folder(path.parent)

    def sync_folder(self, path: Path) -> None:
        """Names in it are as safe as files are: a new one could be lost with the power."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def probe(self, folder: Path) -> None:
        """Try whether there is room again."""
        path = folder / "probe.new"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            self.append(fd, [bytes(_PROBE_BYTES)])
            self.sync(fd)
        finally:
            os.close(fd)
            path.unlink()


def boot_id() -> str:
    """Changes when the machine starts anew: until then, what was written is there, synced or not."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
