"""Listening. It accepts sockets itself, for two reasons. The event loop's own servers accept whoever is in
the kernel's line in one go, and hundreds that come in the same instant would hold up everyone else
(TB-20). And they tell of a TLS connection only when its handshake is over; until then nobody would
count it.

One newcomer is accepted at a time, and while messages flow only one in a while: a bus that is busy without
a break delays them more than its own work does, because those who talk have to wait for a core too.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

log = logging.getLogger("polybus.net")

PACE_S: Final = 0.001
"""Between two newcomers while others talk. Each costs some hundred microseconds until its client is greeted."""
PAUSE_S: Final = 1.0
"""How long nothing is accepted after the system could not give us a socket."""


async def bind(host: str, port: int, backlog: int) -> list[socket.socket]:
    """A listening socket for each address that `host` has."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            sockets.append(socket.create_server(address, family=family, backlog=backlog))
            sockets[-1].setblocking(False)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def bind_unix(path: str, backlog: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(path)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


class Acceptor:
    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext | None,
        *,
        has_room: Callable[[int], bool],
        traffic: Callable[[], int],
        handshake_timeout_s: float,
    ) -> None:
        """`has_room` is asked before a TLS handshake, with the number of those under way; `traffic` counts
        what those who are in have said."""
        self.sockets = sockets
        self._context = context
        self._factory = factory
        self._has_room = has_room
        self._traffic = traffic
        self._traffic_before = 0
        self._handshake_timeout_s = handshake_timeout_s
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._is_closed = False
        for sock in sockets:
            self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for sock in self.sockets:
            self._loop.remove_reader(sock)
            sock.close()
        for task in self._handshakes:
            task.cancel()

    def _accept(self, sock: socket.socket) -> None:
        try:
            peer, _ = sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError:  # out of descriptors; whoever waits stays in the kernel's line
            self._wait(sock, PAUSE_S)
            return
        self._greet(peer)
        traffic = self._traffic()
        if traffic != self._traffic_before:
            self._traffic_before = traffic
            self._wait(sock, PACE_S)

    def _greet(self, peer: socket.socket) -> None:
        if self._context is not None and not self._has_room(len(self._handshakes)):
            peer.close()
            return
        peer.setblocking(False)
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._shake_hands(peer))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def _wait(self, sock: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(sock)
        self._loop.call_later(seconds, self._go_on, sock)

    def _go_on(self, sock: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(sock, self._accept, sock)

    async def _shake_hands(self, peer: socket.socket) -> None:
        try:
            if self._context is None:
                await self._loop.connect_accepted_socket(self._factory, peer)
            else:
                await self._loop.connect_accepted_socket(
                    self._factory, peer, ssl=self._context, ssl_handshake_timeout=self._handshake_timeout_s
                )
        except (OSError, asyncio.CancelledError) as error:
            peer.close()
            log.debug("not connected", extra={"fields": {"error": str(error) or type(error).__name__}})
