"""The fuzzer for a bounded count, and that it would notice."""

import pytest

from polybus.broker.dispatch import Dispatcher
from polybus.broker.lifecycle import RequestState
from polybus.broker.message import Delivery
from polybus.broker.request import Request
from polybus.session.mqtt import MqttLink
from tests.fuzz.fuzzer import STATES, Failure, Fuzzer


def test_a_bounded_count() -> None:
    fuzzer = Fuzzer(seed=1)
    fuzzer.run(3_000)
    assert min(fuzzer.outcomes.values()) > 300, "both kinds of ends are met often"


def test_every_case_is_the_same_for_the_same_seed() -> None:
    stories = []
    for _ in range(2):
        fuzzer = Fuzzer(seed=2)
        fuzzer.run(40)
        stories.append((fuzzer._story, fuzzer.outcomes, fuzzer.world.broker.stats))
    assert stories[0] == stories[1]


def test_it_notices_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(self: MqttLink, *arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(MqttLink, "_on_pubrel", explode)
    with pytest.raises(Failure, match=r"seed 3, case \d+"):
        Fuzzer(seed=3).run(1_000)


def test_it_notices_a_requester_that_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = MqttLink.outcome

    def forget(self: MqttLink, request: Request, now: float) -> Delivery | None:
        is_canceled = request.state is RequestState.CANCELED or request.reason == "no answer in time"
        return None if is_canceled else outcome(self, request, now)

    monkeypatch.setattr(MqttLink, "outcome", forget)
    with pytest.raises(Failure, match=r"seed 3, case \d+") as failure:
        Fuzzer(seed=3).run(1_000)
    assert "requests without an end" in str(failure.value.__cause__)


def test_it_notices_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []
    detach = Dispatcher.detach

    def leak(self: Dispatcher, session: object) -> None:
        kept.append([[session], [session], [session]])
        detach(self, session)  # type: ignore[arg-type]

    monkeypatch.setattr(Dispatcher, "detach", leak)
    with pytest.raises(Failure, match="blocks of memory"):
        Fuzzer(seed=4).run(2_000)


def test_every_state_is_reached() -> None:
    fuzzer = Fuzzer(seed=5)
    seen = set()
    with pytest.MonkeyPatch.context() as patch:
        for name, enter in list(STATES.items()):

            def noting(world, dice, *, name=name, enter=enter):  # type: ignore[no-untyped-def]
                seen.add(name)
                return enter(world, dice)

            patch.setitem(STATES, name, noting)
        fuzzer.run(200)
    assert seen == set(STATES)
