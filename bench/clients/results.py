"""What a program of the benchmark prints: one line of JSON."""

import json
import statistics
from collections.abc import Sequence


def print_rate(what: str, count: int, seconds: float, latencies_s: Sequence[float] = (), **more: float) -> None:
    found: dict[str, float] = {what: count, "seconds": seconds, "rate": count / seconds, **more}
    if latencies_s:
        ordered = sorted(latencies_s)
        found |= {
            "p50_us": 1e6 * ordered[len(ordered) // 2],
            "p99_us": 1e6 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
            "mean_us": 1e6 * statistics.fmean(ordered),
        }
    print(json.dumps(found), flush=True)
