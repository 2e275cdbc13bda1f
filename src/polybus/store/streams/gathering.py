"""What comes next in a partition. Belongs to the event loop."""

from typing import Final

from polybus.store.streams.blocks import Block
from polybus.store.streams.partition import Partition
from polybus.store.streams.pieces import Piece

BATCH_ROWS: Final = 16_384
BATCH_BYTES: Final = 4 * 1024 * 1024
PIECE_BYTES: Final = 200
"""What a piece costs beside its bytes."""
QUICK_BYTES: Final = 256 * 1024
"""So much can be packed without others having to wait for it."""


class Gathering:
    __slots__ = (
        "_loose_bytes",
        "_next",
        "_under_way",
        "commit",
        "held_bytes",
        "partition",
        "pieces",
        "rows",
        "size_bytes",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.pieces: list[Piece | Block] = []
        self.rows = 0
        self.size_bytes = 0
        """As columns."""
        self.held_bytes = 0
        """In memory."""
        self.commit = 0
        """The one that they belong to; never two."""
        self._loose_bytes = 0
        """Of payloads that are not packed yet."""
        self._next = 0
        self._under_way = 0

    @property
    def is_enough(self) -> bool:
        """For a batch."""
        return self.rows >= BATCH_ROWS or self.size_bytes >= BATCH_BYTES

    @property
    def is_quick(self) -> bool:
        """To pack, with a quick compression."""
        return self._loose_bytes <= QUICK_BYTES

    def add(self, piece: Piece | Block, commit: int) -> int:
        """How much memory it holds from now on."""
        held = piece.held_bytes + PIECE_BYTES
        self.pieces.append(piece)
        self.rows += piece.count
        self.size_bytes += piece.size_bytes
        self.held_bytes += held
        if not (isinstance(piece, Piece) and piece.block is not None):
            self._loose_bytes += piece.size_bytes
        self.commit = commit or self.commit
        return held

    def empty(self) -> tuple[list[Piece | Block], int, int]:
        """What has gathered, how many records that is, and the commit it belongs to."""
        gathered = self.pieces, self.rows, self.commit
        self.pieces, self.rows, self.size_bytes, self.held_bytes, self.commit = [], 0, 0, 0, 0
        self._loose_bytes = 0
        return gathered

    # -- offsets --------------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        """Of the next record: behind those that are on their way to the disk, or else behind those there."""
        return self._next if self._under_way else self.partition.written

    def left(self, following: int) -> None:
        """A batch is on its way, behind which that offset follows."""
        self._next = following
        self._under_way += 1

    def arrived(self) -> None:
        """A batch is written, or could not be."""
        self._under_way -= 1
