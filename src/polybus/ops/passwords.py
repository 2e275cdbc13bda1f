"""The password file: one `user:hash` a line, `#` begins a comment line.

Hashes are Argon2id in the PHC format, so that a file may be made with other tools too. The cost
is OWASP's for servers that check many logins (19 MiB, 2 passes, 1 lane): some 20 ms of one core.
More lanes would take the cores that route messages.
"""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import argon2

from polybus.errors import ConfigError, UsageError
from polybus.ops.tables import reason_of

HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
MOST_PASSWORD_BYTES: Final = 65_535  # of MQTT


def read_password_file(path: Path) -> dict[str, str]:
    """User names and their hashes. Raises `ConfigError` that names the line."""
    users: dict[str, str] = {}
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, hashed = line.partition(":")
        if not colon or not user:
            raise ConfigError(
                f"{path}:{number}: expected user:hash; add users with: polybus passwd {path} USER"
            )
        if user in users:
            raise ConfigError(f"{path}:{number}: user {user!r} is in the file twice; remove one of the lines")
        try:
            argon2.extract_parameters(hashed.strip())
        except argon2.exceptions.InvalidHashError:
            raise ConfigError(
                f"{path}:{number}: the hash of user {user!r} is not an Argon2 hash;"
                f" set the password anew with: polybus passwd {path} {user}"
            ) from None
        users[user] = hashed.strip()
    return users


def set_password(path: Path, user: str, password: bytes) -> bool:
    """Add `user` to the file or change its line; other lines stay as they are. True if it is new.

    The file is replaced in one step and only its owner may read it. Raises `UsageError` for a name
    or password that cannot be used.
    """
    if not user or not user.isprintable() or user != user.strip() or user.startswith("#") or ":" in user:
        raise UsageError(
            f"{user!r} cannot be a user name: it must be printable, without ':' and not begin with '#'"
        )
    if not 0 < len(password) <= MOST_PASSWORD_BYTES:
        raise UsageError(f"a password has 1 to {MOST_PASSWORD_BYTES} bytes")
    line = f"{user}:{HASHER.hash(password)}"
    lines = _read(path).rstrip("\n").split("\n") if path.exists() else []
    places = [index for index, each in enumerate(lines) if each.startswith(f"{user}:")]
    if places:
        lines[places[0]] = line
    else:
        lines.append(line)
    _replace(path, "".join(f"{each}\n" for each in lines))
    return not places


def check_password(hashed: str, password: bytes) -> bool:
    """Takes its time on purpose: call it off the event loop."""
    try:
        return HASHER.verify(hashed, password)
    except argon2.exceptions.VerificationError:
        return False


def decoy_hash(users: Mapping[str, str]) -> str:
    """A hash nobody knows the password of, as slow to check as the users' own."""
    hasher = HASHER
    if users:
        hasher = argon2.PasswordHasher.from_parameters(argon2.extract_parameters(next(iter(users.values()))))
    return hasher.hash(os.urandom(16))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; is it a password file?") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {reason_of(error)}") from error


def _replace(path: Path, text: str) -> None:
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
        ) as temporary:
            try:
                os.fchmod(temporary.fileno(), stat.S_IRUSR | stat.S_IWUSR)
                temporary.write(text)
                temporary.flush()
                os.fsync(temporary.fileno())
                os.replace(temporary.name, path)
            except BaseException:
                os.unlink(temporary.name)
                raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {reason_of(error)}") from error
