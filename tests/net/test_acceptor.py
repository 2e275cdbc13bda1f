"""Who is let in, and how fast: a crowd at the door must not hold up those who talk (TB-20)."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator

import pytest

from polybus.net import acceptor
from polybus.net.acceptor import Acceptor
from tests.net.peers import eventually

A_WHILE = 50


class Door:
    """An acceptor that keeps count; `said` is what those inside have said so far."""

    def __init__(self) -> None:
        self.said = 0
        self.entered = 0
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.sock.setblocking(False)
        self.acceptor = Acceptor(
            [self.sock],
            self._enter,
            None,
            has_room=lambda in_handshake: True,
            traffic=lambda: self.said,
            handshake_timeout_s=5.0,
        )
        self.crowd: list[socket.socket] = []

    def _enter(self) -> asyncio.Protocol:
        self.entered += 1
        return asyncio.Protocol()

    def knock(self, count: int) -> None:
        self.crowd += [socket.create_connection(self.sock.getsockname()) for _ in range(count)]

    async def turns(self) -> None:
        """Let the event loop look at its sockets, more often than there are clients at the door."""
        for _ in range(A_WHILE):
            await asyncio.sleep(0)

    def close(self) -> None:
        self.acceptor.close()
        for peer in self.crowd:
            peer.close()


@contextlib.contextmanager
def a_door() -> Iterator[Door]:
    door = Door()
    try:
        yield door
    finally:
        door.close()


@pytest.fixture
def for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "PACE_S", 3600.0)


@pytest.mark.usefixtures("for_ever")
async def test_while_nobody_talks_everyone_comes_in_at_once() -> None:
    with a_door() as door:
        door.knock(5)
        await eventually(lambda: door.entered == 5)


@pytest.mark.usefixtures("for_ever")
async def test_while_others_talk_a_newcomer_waits_for_its_time() -> None:
    with a_door() as door:
        door.said = 1
        door.knock(5)
        await eventually(lambda: door.entered == 1)
        await door.turns()
        assert door.entered == 1


async def test_a_newcomer_that_had_to_wait_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_door() as door:
        monkeypatch.setattr(acceptor, "PACE_S", 0.001)
        door.said = 1
        door.knock(5)
        await eventually(lambda: door.entered == 5)


async def test_without_descriptors_it_pauses_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_door() as door:
        monkeypatch.setattr(acceptor, "PAUSE_S", 0.001)
        accept, failures = socket.socket.accept, iter([OSError(errno.EMFILE, "too many open files")])

        def spent(sock: socket.socket) -> tuple[socket.socket, object]:
            for failure in failures:
                raise failure
            return accept(sock)

        monkeypatch.setattr(socket.socket, "accept", spent)
        door.knock(2)
        await eventually(lambda: door.entered == 2)
