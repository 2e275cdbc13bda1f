"""The Python peer understands every command of its protocol, as its C++ twin does."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Self

import pytest

from tests.e2e.conftest import StartBus
from tests.e2e.processes import Served, unique


class Pipe:
    """One peer. `say` returns the reply; what happened by itself meanwhile is kept in `news`."""

    def __init__(self) -> None:
        self.news: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.python_peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()

    def say(self, command: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        while (line := self._read()).startswith("! "):
            self.news.append(line[2:])
        return line

    def hear(self, text: str) -> None:
        """Wait for something that happens by itself."""
        while text not in self.news:
            line = self._read()
            assert line.startswith("! "), line
            self.news.append(line[2:])
        self.news.remove(text)

    def hear_any(self, beginning: str) -> str:
        while not (found := [line for line in self.news if line.startswith(beginning)]):
            self.news.append(self._read()[2:])
        return found[0]

    def connect(self, served: Served, client_id: str, clean: int = 1, bulk: str = "adaptive") -> str:
        return self.say(f"connect 127.0.0.1 {served.ports['tbus']} {client_id} {clean} 60 {bulk}")

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the peer is gone"
        return line.rstrip("\n")


@pytest.fixture
def served(start_bus: StartBus) -> Served:
    return start_bus(kinds=("tbus",))


@pytest.fixture
def pair(served: Served) -> Iterator[tuple[Pipe, Pipe]]:
    """A service and a requester."""
    with Pipe() as one, Pipe() as other:
        assert one.connect(served, unique("service")) == "ok"
        assert other.connect(served, unique("asker"), bulk="off") == "ok"
        one.hear("connected")
        other.hear("connected")
        yield one, other


def test_messages(pair: tuple[Pipe, Pipe]) -> None:
    one, other = pair
    assert one.say("subscribe a/#") == "ok"
    assert other.say("publish a/b 00ff 0 0") == "ok"
    one.hear("message a/b 00ff")
    assert other.say("publish a/b - 1 0") == "ok"
    one.hear("message a/b -")
    assert one.say("unsubscribe a/#") == "ok"
    assert one.say("unsubscribe a/#").startswith("error refused 17 ")
    assert one.say("subscribe a/#/b").startswith("error refused 143 ")
    assert other.say("publish later 01 0 20") == "ok"
    assert one.say("subscribe later") == "ok"
    one.hear("message later 01")


def test_requests(pair: tuple[Pipe, Pipe]) -> None:
    one, other = pair
    for behaviour in ("echo 2", "triple 1", "fail 1", "hang 1", "slow 5 1"):
        assert one.say(f"serve {behaviour.split()[0]} {behaviour}") == "ok"
    assert other.say("request echo 0102 1 5") == "ok 1"
    assert other.say("await 1") == "ok 0102"
    one.hear("request echo 0102 1")
    other.say("request triple 023134 0 5")
    assert other.say("await 2") == "ok 023432"
    other.say("request fail - 0 5")
    assert other.say("await 3") == "error service cannot do it"
    other.say("request slow 07 0 5")
    assert other.say("await 4") == "ok 07"
    other.say("request hang - 0 1")
    assert other.say("await 5").startswith("error timeout ")
    one.hear("request hang - 0")
    one.hear("canceled hang")
    other.say("request hang - 0 60")
    one.hear("request hang - 0")
    assert other.say("cancel 6") == "ok"
    one.hear("canceled hang")
    assert other.say("await 6").startswith("error canceled ")
    assert other.say("await 6").startswith("error usage ")


def test_answer_for_who_was_away(served: Served, pair: tuple[Pipe, Pipe]) -> None:
    one, _ = pair
    name = unique("away")
    with Pipe() as away:
        away.connect(served, name)
        assert away.say("request late 05 0 30") == "ok 1"
        assert away.say("disconnect 0 back soon") == "ok"
        assert away.say("publish x - 0 0").startswith("error closed ")
        one.say("serve late echo 1")
        one.hear("request late 05 0")
        assert away.connect(served, name, clean=0) == "ok"
        assert away.say("await 1") == "ok 05"


def test_deleted_and_refused(start_bus: StartBus) -> None:
    served = start_bus("[limits]\nstored_messages = 1\n", kinds=("tbus",))
    with Pipe() as one, Pipe() as other:
        assert one.say("publish x - 0 0").startswith("error closed ")
        name = unique("same")
        assert one.connect(served, name) == "ok"
        assert other.connect(served, name).startswith("error refused 132 ")
        assert other.say("connect 127.0.0.1 1 x 1 60 off").startswith("error unreachable ")
        one.say("request a - 0 60")
        one.say("request b - 1 60")
        assert one.say("await 1").startswith("error deleted ")
        assert one.say("nonsense").startswith("error usage ")
        assert one.say("publish x").startswith("error usage ")
        assert one.say("disconnect 7").startswith("error usage ")
        assert one.say("disconnect 128 no database") == "ok"
        assert "closed as asked" in one.news


def test_broker_goes_and_comes(start_bus: StartBus) -> None:
    served = start_bus(kinds=("tbus",))
    with Pipe() as one:
        one.connect(served, unique("left"))
        one.hear("connected")
        served.process.kill()
        assert one.hear_any("lost ").startswith("lost ")
