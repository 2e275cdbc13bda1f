"""Fuzz until the count is reached or something breaks: ``python -m tests.fuzz --count 100000 --seed 7``."""

import argparse
import secrets
import sys
import time

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.fuzz.fuzzer import Failure, Fuzzer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="cases to run")
    parser.add_argument("--seed", type=int, help="repeat a run; without it, chosen by chance")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    fuzzer = Fuzzer(seed)
    columns = (
        TextColumn(f"seed {seed}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]} cases/s"),
        TimeRemainingColumn(),
    )
    began = time.perf_counter()
    with Progress(*columns) as progress:
        task = progress.add_task("fuzz", total=options.count, rate=0)

        def advance() -> None:
            if fuzzer.case % 50 == 0 or fuzzer.case == options.count:
                rate = round(fuzzer.case / (time.perf_counter() - began))
                progress.update(task, completed=fuzzer.case, rate=rate)

        try:
            fuzzer.run(options.count, advance)
        except Failure as failure:
            progress.stop()
            print(failure, file=sys.stderr)
            if failure.__cause__ is not None:
                print(f"  {failure.__cause__!r}", file=sys.stderr)
            return 1
    rate = round(options.count / (time.perf_counter() - began))
    outcomes = ", ".join(f"{number} {what}" for what, number in fuzzer.outcomes.items())
    print(f"{options.count} cases ({outcomes} at the end), {rate} a second, seed {seed}: nothing broke")
    return 0


if __name__ == "__main__":
    sys.exit(main())
