"""Nothing acknowledged is lost by `kill -9`, and nothing comes twice that QoS 2 forbids (OP-01).

More and longer: POLYBUS_CRASH_ROUNDS=300, POLYBUS_CRASH_SEED=7, or `python -m tests.e2e.crash --help`.
"""

import os
import secrets
from pathlib import Path

import pytest

from bench.brokers import BrokerError, mosquitto
from tests.e2e.crash.cases import CASES, DEATHS, LOGGED, PLAIN_MQTT, WILL_DELAY_S, run_case
from tests.e2e.crash.logs import KIND
from tests.e2e.crash.run import Plan, run

ROUNDS = int(os.environ.get("POLYBUS_CRASH_ROUNDS", "30"))
SEED = int(os.environ.get("POLYBUS_CRASH_SEED", "0")) or secrets.randbelow(1_000_000)
COUNT = 20_000
FULL_TOO = ("offline", "stored", "requests-wait")
"""Killing a process cannot tell the two ways of writing apart; that both work, it can."""


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_a_broker_that_is_killed_again_and_again_keeps_its_promises(tmp_path: Path) -> None:
    outcome = run(Plan("polybus", ROUNDS, SEED), tmp_path)
    print(outcome.title, outcome.verdict.text(), sep="\n")
    assert outcome.verdict.is_good, outcome.explain()
    assert all(row.acknowledged for row in outcome.verdict.rows), outcome.explain()


@pytest.mark.parametrize("sync", ["normal", "full"])
def test_a_record_is_in_the_stream_once_wherever_the_broker_dies(sync: str, tmp_path: Path) -> None:
    outcome = run_case("between", "polybus-doomed", tmp_path, count=100, sync=sync)
    assert outcome.verdict.is_good, outcome.explain()
    rows = [outcome.verdict.row(KIND.format(qos)) for qos in (1, 2)]
    assert all(row.acknowledged == 4 * DEATHS and not row.duplicated for row in rows), outcome.explain()


@pytest.mark.parametrize(
    ("case", "sync"),
    [*((case, "normal") for case in CASES if case not in LOGGED), *((case, "full") for case in FULL_TOO)],
)
def test_a_kill_at_a_chosen_moment(case: str, sync: str, tmp_path: Path) -> None:
    # Twenty thousand are for the one experiment that others are compared by.
    count = COUNT if (case, sync) == ("offline", "normal") else COUNT // 10
    outcome = run_case(case, "polybus", tmp_path, count=count, sync=sync)
    assert outcome.verdict.is_good, outcome.explain()


# -- That all this would notice -----------------------------------------------------------------


def test_a_broker_that_forgets_is_found_out(tmp_path: Path) -> None:
    outcome = run(Plan("polybus-memory", rounds=5, seed=1, quiet_s=1.5), tmp_path)
    lost = {row.kind for row in outcome.verdict.rows if row.lost}
    assert {"QoS 1 messages", "QoS 2 messages", "stored messages", "sessions"} <= lost, outcome.explain()
    assert {"QoS 1 requests", "QoS 2 requests"} & lost, outcome.explain()
    assert outcome.verdict.row("TBus requests").lost == 0, "they are asked again until they have ended"
    assert not outcome.verdict.strange, outcome.explain()


# The others are about what must not come, and a broker that forgets sends nothing.
@pytest.mark.parametrize("case", sorted(set(CASES) - {"half-way", "clean-start", "expiry", "between"}))
def test_a_broker_that_forgets_is_found_out_by_the_case(case: str, tmp_path: Path) -> None:
    quiet_s = 2.0 * WILL_DELAY_S if case == "will" else 1.0
    outcome = run_case(case, "polybus-memory", tmp_path, count=400, quiet_s=quiet_s)
    rows = [row for row in outcome.verdict.rows if row.kind != "sessions"]
    assert all(row.lost == row.acknowledged > 0 for row in rows), outcome.explain()
    assert not outcome.verdict.strange, outcome.explain()


@pytest.mark.parametrize("case", sorted(PLAIN_MQTT))
def test_another_broker_plays_the_same_cases(case: str, tmp_path: Path) -> None:
    """What Mosquitto loses is its affair, and a matter of luck; that it is asked the same is not."""
    try:
        mosquitto()
    except BrokerError as error:
        pytest.skip(str(error))
    outcome = run_case(case, "mosquitto", tmp_path, count=400, quiet_s=1.0)
    rows = [row for row in outcome.verdict.rows if row.kind.startswith("QoS")]
    assert sum(row.acknowledged for row in rows) >= 24
    assert not outcome.verdict.strange, outcome.explain()
