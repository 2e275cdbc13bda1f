"""File descriptors: every connection takes one, and the system has a limit of its own."""

import contextlib
import errno
import logging
import os
import resource
from typing import Final

log = logging.getLogger("polybus.net")

OTHER_FILES: Final = 64
"""What the process needs beside its connections."""


def make_room(connections: int) -> None:
    """Take as many as the system lets us have, and say so if they are too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    needed = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        log.warning(
            "the system allows fewer open files than limits.connections needs; raise the limit of open files",
            extra={"fields": {"allowed": soft, "needed": needed}},
        )


def are_spent() -> bool:
    """Whether not even one more could be opened."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False
