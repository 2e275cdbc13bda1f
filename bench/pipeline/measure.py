"""How long work takes, by the clock on the wall and by the CPU time of all our processes."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Taken:
    """What a run took; `cpu_s` is of all our processes, and says more on a machine that others use too."""

    wall_s: float
    cpu_s: float


def best(work: Callable[[], object], runs: int) -> Taken:
    """The quickest run, by each clock."""
    return side_by_side({"": work}, runs)[""]


def side_by_side(works: Mapping[str, Callable[[], object]], runs: int) -> dict[str, Taken]:
    """The quickest run of each, by each clock; they take turns, so that a busy machine is busy for all."""
    walls: dict[str, list[float]] = {name: [] for name in works}
    cpus: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(runs):
        for name, work in works.items():
            wall, before = time.perf_counter(), cpu_seconds()
            work()
            walls[name].append(time.perf_counter() - wall)
            cpus[name].append(cpu_used(before, cpu_seconds()))
    return {name: Taken(min(walls[name]), min(cpus[name])) for name in works}


def shares_of(ceiling: Taken, taken: Taken) -> list[str]:
    """How much of the ceiling's speed that is, by each clock."""
    is_known = math.isfinite(ceiling.cpu_s) and math.isfinite(taken.cpu_s)
    by_cpu = f"{ceiling.cpu_s / taken.cpu_s:.0%}" if is_known else "?"
    return [f"{ceiling.wall_s / taken.wall_s:.0%}", by_cpu]


def cpu_used(before: dict[int, float], after: dict[int, float]) -> float:
    """CPU seconds between two looks; infinitely many if a process ended, for its share is not known."""
    if before.keys() - after.keys():
        return math.inf
    return max(sum(after.values()) - sum(before.values()), 0.01)


def cpu_seconds() -> dict[int, float]:
    """What this process and each below it has used: Spark's Java and Python processes are among them."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in brackets, may hold anything; the fields behind it are numbers.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    found: dict[int, float] = {}
    wanted = [os.getpid()]
    while wanted:
        process = wanted.pop()
        found[process] = ticks.get(process, 0) / os.sysconf("SC_CLK_TCK")
        wanted += [child for child, parent in parents.items() if parent == process]
    return found
