"""The benchmark of the source measures what it says."""

import math
import os
from pathlib import Path

from bench.pipeline.measure import cpu_seconds, cpu_used
from bench.pipeline.pcap import read_with_dpkt, read_with_ours, write_capture


def test_both_readers_read_the_whole_capture(tmp_path: Path) -> None:
    path = tmp_path / "bench.pcap"
    write_capture(path, 6000)
    assert read_with_dpkt(path, 10_000) == 6000
    assert read_with_ours(path, ("number", "src", "payload")) == 6000


def test_cpu_time_counts_our_processes_and_none_that_ended_meanwhile() -> None:
    assert os.getpid() in cpu_seconds()
    assert cpu_used({1: 2.0}, {1: 3.0, 2: 0.5}) == 1.5
    assert cpu_used({1: 2.0, 2: 1.0}, {1: 3.0}) == math.inf
