"""What was found of the client libraries: tables and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from bench.clients.measure import CPP, LIBMOSQUITTO, LIBRARIES, PAHO, PUBLISHERS, PYTHON, Results, median
from bench.loadgen import Sample
from bench.page import NOTHING, Grid, Page, Verdict, short
from bench.requests import document

REQUEST_AIMS = {PYTHON: 15_000.0, CPP: 50_000.0}
PUBLISH_AIM = 200_000.0
RIVALS = {PYTHON: PAHO, CPP: LIBMOSQUITTO}


@dataclass(frozen=True)
class Report(Page):
    version: str
    results: Results

    @property
    def title(self) -> str:
        return f"Client libraries, Polybus {self.version}"

    def grids(self) -> list[Grid]:
        found = self.results
        grids = []
        if found.published:
            grids.append(published_grid(found.published))
        if found.pipelined:
            grids.append(pipelined_grid(found.pipelined))
        if found.rates:
            grids.append(rates_grid(found.rates))
        if found.pairs:
            grids.append(pairs_grid(found.pairs))
        return grids

    def notes(self) -> list[str]:
        notes = list(self.results.failures)
        places = [("as fast as it goes", self.results.pipelined), ("pairs", self.results.pairs)]
        places += [(f"{rate:,}/s", by_client) for rate, by_client in self.results.rates.items()]
        for label, by_client in places:
            for client, samples in by_client.items():
                failures = sum(sample.get("failures", 0) for sample in samples)
                if failures:
                    notes.append(f"{label}, {client}: {failures:,.0f} requests had no answer")
        return notes

    def verdicts(self) -> list[Verdict]:
        return verdicts(self.results)

    def figures(self) -> Mapping[str, object]:
        return {"version": self.version, **asdict(self.results)}


def published_grid(found: Mapping[str, Sequence[Sample]]) -> Grid:
    rows = []
    for client in PUBLISHERS:
        if client not in found:
            continue
        rival = RIVALS.get(client, "")
        ratio = median(found[client], "rate") / median(found[rival], "rate") if rival in found else None
        broker = "Polybus" if client in LIBRARIES else "Mosquitto"
        against = NOTHING if ratio is None else f"{ratio:.1f}× {rival}"
        rows.append([client, broker, short(median(found[client], "rate")), against])
    title = "Publishing small messages without acknowledgement, until the broker has read them: medians"
    return Grid(title, ["client", "to", "messages/s", "ratio"], rows)


def pipelined_grid(found: Mapping[str, Sequence[Sample]]) -> Grid:
    rows = [
        [client, short(median(samples, "rate")), ms(samples, "p50_us"), ms(samples, "p99_us")]
        for client, samples in found.items()
    ]
    title = "One requester with many requests under way, one service: medians"
    return Grid(title, ["client", "requests/s", "p50 ms", "p99 ms"], rows)


def rates_grid(found: Mapping[int, Mapping[str, Sequence[Sample]]]) -> Grid:
    columns = ["requests/s", *(f"its {name}" for name in document.COLUMNS)]
    for client in LIBRARIES:
        columns += [f"{client}: mean", "p50", "p99"]
    rows = []
    for rate, by_client in found.items():
        cells = [f"{rate:,}", *document.ONE_PAIR[rate].cells()]
        for client in LIBRARIES:
            cells += [ms(by_client.get(client, ()), key) for key in ("mean_us", "p50_us", "p99_us")]
        rows.append(cells)
    return Grid("One pair of clients, in ms, beside the document's table 5.8", columns, rows)


def pairs_grid(found: Mapping[str, Sequence[Sample]]) -> Grid:
    its = zip(document.COLUMNS, document.TWO_HUNDRED_PAIRS.cells(), strict=True)
    rows = [[f"its {name}", mean, NOTHING, NOTHING] for name, mean in its]
    rows += [
        [client, *(ms(samples, key) for key in ("mean_us", "p50_us", "p99_us"))]
        for client, samples in found.items()
    ]
    title = "200 pairs at 10 requests/s each, in ms, beside the document's table 5.9"
    return Grid(title, ["client", "mean", "p50", "p99"], rows)


def verdicts(found: Results) -> list[Verdict]:
    judged = []
    for client, aim in REQUEST_AIMS.items():
        judged.append(at_least(f"{client}: {aim:,.0f} requests/s", found.pipelined.get(client, ()), aim))
    python = found.published.get(PYTHON, ())
    judged.append(at_least(f"{PYTHON}: publishing {PUBLISH_AIM:,.0f} messages/s", python, PUBLISH_AIM))
    for client, rival in RIVALS.items():
        wanted = f"{client}: publishing ahead of {rival}"
        ours, theirs = found.published.get(client), found.published.get(rival)
        if not ours or not theirs:
            judged.append(Verdict(wanted, NOTHING, None))
            continue
        ratio = median(ours, "rate") / median(theirs, "rate")
        judged.append(Verdict(wanted, f"{ratio:.1f}×", ratio > 1))
    return judged


def at_least(aim: str, samples: Sequence[Sample], least: float) -> Verdict:
    if not samples:
        return Verdict(aim, NOTHING, None)
    rate = median(samples, "rate")
    return Verdict(aim, f"{short(rate)}/s", rate >= least)


def ms(samples: Sequence[Sample], key: str) -> str:
    return f"{median(samples, key) / 1000:.2f}" if samples else NOTHING
