"""The data folder: where everything durable is kept, by one broker at a time."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from polybus.errors import ConfigError

LOCK_FILE: Final = "lock"
_PRIVATE_FOLDER: Final = 0o700
_PRIVATE_FILE: Final = 0o600


class DataFolder:
    """Created if there is none, for its owner only, and locked until `close`. Raises ConfigError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
        except OSError as error:
            raise ConfigError(
                f"cannot use the data folder {path}: {os.strerror(error.errno or 0)};"
                " choose another (--data-dir), or serve without one (--memory)"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise ConfigError(
                f"the data folder {path} is in use by another broker (process {holder});"
                " stop it, or choose another folder (--data-dir)"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let others have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
