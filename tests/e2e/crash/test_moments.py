import random

from tests.e2e.crash.moments import EVENTS, Countdown, Moment, choose


def test_every_kind_of_moment_comes_and_the_same_ones_for_a_seed() -> None:
    dice = random.Random(3)
    moments = [choose(dice) for _ in range(300)]
    assert {moment.when for moment in moments} == {"starting", "running", "seen"}
    assert {moment.event for moment in moments if moment.when == "seen"} == set(EVENTS)
    again = random.Random(3)
    assert moments == [choose(again) for _ in range(300)]


def test_a_countdown_tells_once() -> None:
    countdown = Countdown(Moment("seen", event="puback", countdown=2))
    events = ["puback", "pubrec", "puback", "puback"]
    assert [countdown.is_reached(event) for event in events] == [False, False, True, False]
    assert not Countdown(Moment("running", delay_s=1.0)).is_reached("puback")
