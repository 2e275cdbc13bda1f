"""What a start finds of a partition: where it goes on, and what has to go.

Nothing that was acknowledged or seen goes. What is behind the mark and belongs to a commit that the state does
not have was neither; its publisher sends it again, and with it there too it would be there twice. Its offsets
stay unused: who read the file itself, without asking for the mark, may have seen them.
"""

import itertools
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from polybus.store.folder import StoreError
from polybus.store.streams.files import Files
from polybus.store.streams.format import HEAD_BYTES, Batch, commit_of
from polybus.store.streams.segment import Segment

log = logging.getLogger("polybus.streams")

RESERVED_FILE: Final = "reserved"


class Reserved(NamedTuple):
    """What was noted about offsets, before they were given."""

    offset: int
    """Was not reached yet; or, if it ended well, just so."""
    boot: str
    is_clean: bool
    is_synced: bool


class Cut(NamedTuple):
    """The first of what has to go."""

    segment: Segment
    batch: Batch


def encode_reserved(noted: Reserved) -> bytes:
    names = {"offset": noted.offset, "boot": noted.boot, "clean": noted.is_clean, "synced": noted.is_synced}
    return json.dumps(names).encode()


def read_reserved(folder: Path) -> Reserved | None:
    """None: it is new. Raises StoreError."""
    path = folder / RESERVED_FILE
    try:
        noted = json.loads(path.read_text())
        is_synced = bool(noted.get("synced", False))
        return Reserved(int(noted["offset"]), str(noted["boot"]), bool(noted["clean"]), is_synced)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}); put an offset there that was never used, as"
            ' {"offset": N, "boot": "", "clean": false}'
        ) from error


def next_offset(found: Sequence[Segment], noted: Reserved | None, mark: int | None, boot: str) -> int:
    """Surely one that was never used."""
    reached = max((segment.next for segment in found), default=0)
    if noted is None:
        return reached
    is_doubtful = bool(found) and bool(found[-1].damages)
    if noted.is_clean or noted.boot != boot or is_doubtful:
        reached = max(reached, noted.offset)
    return max(reached, mark or 0)


def find_cut(
    found: Sequence[Segment], noted: Reserved | None, mark: int | None, committed: int | None, boot: str
) -> Cut | None:
    """`committed` is the last commit that the state has; None: nobody knows, so everything stays.

    The same after the machine itself went down without a sync: what was acknowledged may be missing from the
    state then, and may be here.
    """
    if mark is None or committed is None or noted is None:
        return None
    if noted.boot != boot and not noted.is_synced:
        return None
    for segment in found:
        if segment.next <= mark:
            continue
        with segment.path.open("rb") as file:
            for batch in segment.index():
                if batch.first >= mark and commit_of(os.pread(file.fileno(), HEAD_BYTES, batch.at)) > committed:
                    return Cut(segment, batch)
    return None


def cut_away(row: Sequence[Segment], cut: Cut, files: Files) -> tuple[Segment, ...]:
    """What is left. The last of the row stays as it is: its name is how the offsets stay unused, so it must be
    there before. Raises OSError, and can then be done again."""
    *before, last = row
    at = before.index(cut.segment)
    for segment in reversed(before[at + 1 :]):
        segment.path.unlink()
    fd = files.open(cut.segment.path)
    try:
        files.truncate(fd, cut.batch.at)
        files.sync(fd)
    finally:
        os.close(fd)
    files.sync_folder(cut.segment.path.parent)
    count = last.first - cut.batch.first
    fields = {"file": str(cut.segment.path), "offset": cut.batch.first, "records": count}
    log.warning("records that were not committed are cut off", extra={"fields": fields})
    return (*before[:at], Segment.load(cut.segment.path), last)


def load_all(folder: Path) -> list[Segment]:
    """All of them, in their order. Raises StoreError."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".arrow"))
    found = []
    for name in names:
        try:
            found.append(Segment.load(folder / name))
        except FileNotFoundError:  # dropped just now by the broker whose folder this is
            continue
    for one, other in itertools.pairwise(found):
        if one.next > other.first:
            raise StoreError(f"{other.path} begins before {one.path.name} ends; one of them is not of this log")
    return found
