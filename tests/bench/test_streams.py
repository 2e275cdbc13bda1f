"""The benchmark of streams measures what it says: it counts what it reads back."""

from pathlib import Path

import pytest

from bench.brokers import BrokerError
from bench.streams import __main__ as bench
from polybus.broker.message import Message


def test_every_way_of_writing_and_reading_has_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "RECORDS", 40 * bench.RUN)
    rates = bench.files(quick=False)
    assert len(rates) == 4
    assert all(rate > 0 for rate in rates.values())


def test_records_that_are_missing_are_an_error(tmp_path: Path) -> None:
    bench.append(tmp_path, Message("a", b"x"), bench.RUN)
    bench.read(tmp_path, bench.RUN)
    with pytest.raises(BrokerError, match="256 records were read, 512 written"):
        bench.read(tmp_path, 2 * bench.RUN)
