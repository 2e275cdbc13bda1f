"""What each batch brought, and what became of it: the word on which batches are complete.

    <root>/books/messages/0000001012.json                 of one batch
    <root>/books/messages/0000000000-0000000999.json      of a thousand, when they are all there

Reading a file for each batch of a month would take minutes, and a start has to read them all.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from polybus.errors import PolybusError
from polybus.pipeline.files import Files

Book = Mapping[str, Any]
PACK: Final = 1000


class Books:
    """Runs on the driver. Read once: nobody else writes them."""

    def __init__(self, files: Files, *, pack: int = PACK) -> None:
        self._files = files
        self._pack = pack
        self._books: dict[str, dict[int, Book]] = {}
        self._rows: dict[str, int] = {}

    def of(self, job: str) -> Mapping[int, Book]:
        """By batch."""
        if job not in self._books:
            found: dict[int, Book] = {}
            for name in self._names(job):
                read = json.loads(self._files.read_text(f"{self._folder(job)}/{name}.json"))
                if "-" in name:
                    found.update({int(batch): book for batch, book in read.items()})
                else:
                    found[int(name)] = read
            self._books[job] = found
            self._rows[job] = sum(book["rows"] for book in found.values())
        return self._books[job]

    def totals(self, job: str) -> tuple[int, int]:
        """How many batches and rows."""
        return len(self.of(job)), self._rows[job]

    def write(self, job: str, batch: int, book: Book) -> None:
        """The last step of a batch. Raises `PolybusError` if what came is not what became of it."""
        parts = sum(book["fates"].values())
        if parts != book["rows"]:
            raise PolybusError(
                f"the books of {job}, batch {batch}, do not balance: {book['rows']} rows came, "
                f"{parts} have a fate ({dict(book['fates'])})"
            )
        self.of(job)
        self._files.write_text(f"{self._folder(job)}/{batch:010d}.json", json.dumps(book))
        self._books[job][batch] = book
        self._rows[job] += book["rows"]

    def pack(self, job: str) -> None:
        """Whole thousands into one file each. Whenever it ends in between, some books are there twice."""
        singles = {int(name) for name in self._names(job) if "-" not in name}
        for first in sorted({batch - batch % self._pack for batch in singles}):
            batches = range(first, first + self._pack)
            if all(batch in self.of(job) for batch in batches):
                text = json.dumps({str(batch): self.of(job)[batch] for batch in batches})
                packed = f"{self._folder(job)}/{first:010d}-{batches[-1]:010d}.json"
                if not self._files.exists(packed):  # replaced, it would not be there for a moment
                    self._files.write_text(packed, text)
                for batch in singles.intersection(batches):
                    self._files.delete(f"{self._folder(job)}/{batch:010d}.json")

    def drop(self, job: str) -> None:
        self._files.delete(self._folder(job))
        self._books.pop(job, None)

    def _folder(self, job: str) -> str:
        return self._files.at("books", job)

    def _names(self, job: str) -> list[str]:
        """Without what they end with."""
        names = self._files.names(self._folder(job))
        return [
            name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")
        ]
