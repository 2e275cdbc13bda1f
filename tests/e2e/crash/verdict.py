"""The comparison of the books, and the table of it. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.table import Table

from tests.e2e.crash.books import Audience, Books, Request, Sighting, Stream

EXAMPLES = 8
FAULTS_SHOWN = 10
SESSIONS, RETAINED = "sessions", "retained values"


@dataclass
class Row:
    """One kind of promise; `duplicated` is a fault only where the kind forbids it."""

    kind: str
    may_repeat: bool = False
    acknowledged: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    """Out of order, never sent, not wanted any more, or an end that cannot be."""
    blamed: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What is wrong -> with which."""

    @property
    def is_good(self) -> bool:
        return not self.lost and not self.wrong and (self.may_repeat or not self.duplicated)

    def blame(self, what: str, which: Iterable[object]) -> int:
        """Note it for `faults`; returns how many there are."""
        found = [str(one) for one in which]
        if found:
            self.blamed[what] += found
        return len(found)

    def faults(self) -> list[str]:
        """In words, with the first few of each."""
        lines = []
        for what, which in self.blamed.items():
            more = f" and {len(which) - EXAMPLES} more" if len(which) > EXAMPLES else ""
            lines.append(f"{self.kind}, {what}: {', '.join(which[:EXAMPLES])}{more}")
        return lines


@dataclass
class Verdict:
    rows: list[Row]
    strange: list[str]

    @property
    def is_good(self) -> bool:
        return not self.strange and all(row.is_good for row in self.rows)

    def row(self, kind: str) -> Row:
        return next(row for row in self.rows if row.kind == kind)

    @property
    def lost(self) -> int:
        return sum(row.lost for row in self.rows)

    def faults(self) -> list[str]:
        found = []
        for faults in (self.strange, *(row.faults() for row in self.rows if not row.is_good)):
            found += faults[:FAULTS_SHOWN]
            if len(faults) > FAULTS_SHOWN:
                found.append(f"and {len(faults) - FAULTS_SHOWN} more of this kind")
        return found

    def table(self, title: str) -> Table:
        table = Table(title=title, title_justify="left", pad_edge=False)
        for index, column in enumerate(("kind", "acknowledged", "lost", "duplicated", "wrong", "")):
            table.add_column(column, justify="right" if index else "left", no_wrap=True)
        for row in self.rows:
            allowed = " (may be)" if row.may_repeat and row.duplicated else ""
            figures = [
                f"{row.acknowledged:,}",
                f"{row.lost:,}",
                f"{row.duplicated:,}{allowed}",
                f"{row.wrong:,}",
            ]
            table.add_row(row.kind, *figures, "[green]good" if row.is_good else "[red]BAD")
        return table

    def text(self) -> str:
        """The same in plain lines, for where there is no terminal."""
        lines = [f"{'kind':28}{'acknowledged':>13}{'lost':>9}{'duplicated':>12}{'wrong':>8}"]
        lines += [
            f"{row.kind:28}{row.acknowledged:13,}{row.lost:9,}{row.duplicated:12,}{row.wrong:8,}"
            f"  {'good' if row.is_good else 'BAD'}"
            for row in self.rows
        ]
        return "\n".join(lines)


def compare(books: Books) -> Verdict:
    rows: dict[str, Row] = {}

    def row(kind: str, *, may_repeat: bool) -> Row:
        return rows.setdefault(kind, Row(kind, may_repeat))

    for audience, stream, due in books.dues():
        qos = min(stream.qos, audience.qos)
        kind = audience.kind or stream.kind or f"QoS {qos} messages"
        target = row(kind, may_repeat=qos < 2 or stream.is_doubtful)
        judge_messages(target, audience, stream, due, books.arrived[audience.name, stream.name], books.sent)
    for audience in books.audiences.values():
        for name, last in audience.none_after.items():
            late = sorted({n for n in books.arrived[audience.name, name] if n > last})
            target = row("ended subscriptions", may_repeat=True)
            target.acknowledged += 1
            target.wrong += target.blame(
                f"{name} → {audience.name} came after the end of its subscription", late
            )
    for sighting in books.sightings:
        judge_sighting(row(RETAINED, may_repeat=True), sighting)
    for key, request in books.requests.items():
        # TBus acknowledges nothing: an end that was on its way at the crash may be told again.
        name = "TBus requests" if request.qos is None else f"QoS {request.qos} requests"
        judge_request(row(name, may_repeat=request.qos != 2), key, request)
    if books.sessions_kept or books.sessions_lost:
        target = row(SESSIONS, may_repeat=True)
        lost = sum(books.sessions_lost.values())
        target.acknowledged = sum(books.sessions_kept.values()) + lost
        target.lost = lost
        target.blame("forgotten", books.sessions_lost)
    return Verdict(list(rows.values()), list(books.strange))


def judge_messages(
    row: Row, audience: Audience, stream: Stream, due: set[int], arrived: list[int], sent: dict[str, int]
) -> None:
    """Loss, repetition, disorder and invention in what one audience got of one stream."""
    where = f"{stream.name} → {audience.name}"
    counts = Counter(arrived)
    row.acknowledged += len(due)
    row.lost += row.blame(f"{where} lost", sorted(due - counts.keys()))
    repeated = sorted(number for number, count in counts.items() if count > 1)
    if not row.may_repeat:
        row.blame(f"{where} came more than once", repeated)
    row.duplicated += sum(counts.values()) - len(counts)
    row.wrong += row.blame(f"{where} never sent", sorted(n for n in counts if n > sent[stream.name] or n < 1))
    if audience.is_ordered:
        row.wrong += row.blame(f"{where} out of order", disordered(arrived))


def disordered(arrived: list[int]) -> list[int]:
    """Numbers that came for the first time behind a higher one.

    [MQTT-4.6.0-6] What is sent again may repeat numbers; each one's first arrival is in order nevertheless.
    """
    seen: set[int] = set()
    highest = 0
    found = []
    for number in arrived:
        if number not in seen and number < highest:
            found.append(number)
        seen.add(number)
        highest = max(highest, number)
    return found


def judge_sighting(row: Row, sighting: Sighting) -> None:
    """The last acknowledged value, or a newer one that was under way."""
    row.acknowledged += 1
    sent, acknowledged, seen = sighting.is_deletion, sighting.acknowledged, sighting.seen
    if seen is None:
        if acknowledged and not any(sent[acknowledged - 1 :]):
            row.lost += row.blame("none, though acknowledged", [f"{sighting.topic} {acknowledged}"])
    elif not 1 <= seen <= len(sent) or sent[seen - 1]:
        row.wrong += row.blame("never given", [f"{sighting.topic} {seen}"])
    elif seen < acknowledged:
        row.lost += row.blame("older than acknowledged", [f"{sighting.topic} {seen} < {acknowledged}"])


def judge_request(row: Row, key: str, request: Request) -> None:
    """One end, and the same one if it is told again."""
    if request.is_acknowledged:
        row.acknowledged += 1
        if not request.ends:
            row.lost += row.blame("without an end", [key])
    row.duplicated += max(len(request.ends) - 1, 0)
    if len(request.ends) > 1 and not row.may_repeat:
        row.blame("told more than once", [key])
    different = set(request.ends)
    if len(different) > 1:
        row.wrong += row.blame("ended in different ways", [f"{key} {sorted(different)}"])
    elif request.expected is not None and different and different != {request.expected}:
        row.wrong += row.blame("ended as it could not", [f"{key} {request.ends[0]}"])
