"""A small HTTP/1.1 server for large answers: threads of its own, h11 for the protocol, sendfile for files.

The event loop never waits for a reader's disk or network here, and file bytes do not pass through Python.
(The loop's own servers cannot do that: uvloop has no sendfile.) Knows nothing of what it serves: `answer`
turns a request into an answer, in the thread of the connection.
"""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import BinaryIO, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import msgspec

log = logging.getLogger("polybus.net.http")

MOST_CONNECTIONS: Final = 64
"""At once; who comes next waits in the kernel's line."""
IDLE_S: Final = 60.0
"""How long a connection may be silent, or take nothing of its answer."""
READ_BYTES: Final = 16 * 1024
MOST_BODY_BYTES: Final = 64 * 1024
"""Of requests, which have no business with one."""


class FilePart:
    """Bytes of an open file, which the part closes when it is sent."""

    def __init__(self, file: BinaryIO, at: int, size: int) -> None:
        self.file = file
        self.at = at
        self.size = size

    def __len__(self) -> int:
        return self.size


Part: TypeAlias = bytes | FilePart


class Request(msgspec.Struct, frozen=True):
    method: str
    path: tuple[str, ...]
    """Decoded, level by level."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    peer: str


class Answer(msgspec.Struct):
    status: int
    parts: Sequence[Part] = ()
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"


def as_json(value: object, status: int = 200, **headers: str) -> Answer:
    body = json.dumps(value, indent=1).encode() + b"\n"
    named = tuple((name.replace("_", "-"), text) for name, text in headers.items())
    return Answer(status, [body], named)


def problem(status: int, text: str, *, headers: Mapping[str, str] | None = None, **facts: object) -> Answer:
    """What went wrong, in words, and what a program needs to go on."""
    answer = as_json({"error": text, **facts}, status)
    answer.headers = tuple((headers or {}).items())
    return answer


class HttpServer:
    def __init__(self, host: str, port: int, answer: Callable[[Request], Answer]) -> None:
        """Listens at once. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._answer = answer
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self._open: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._is_closing = False
        self._acceptor = threading.Thread(target=self._accept, name="polybus-http", daemon=True)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        self._acceptor.start()

    def close(self) -> None:
        """Ends every connection, also those with an answer under way."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._room.release()
        with self._lock:
            threads = list(self._threads)
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        if self._acceptor.is_alive():
            self._acceptor.join()
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            self._room.acquire()
            try:
                sock, address = self._listener.accept()
            except OSError:
                if self._is_closing:
                    return
                self._room.release()
                continue
            peer = f"{address[0]}:{address[1]}"
            thread = threading.Thread(target=self._serve, args=(sock, peer), name="polybus-http", daemon=True)
            with self._lock:
                self._open.add(sock)
                self._threads.add(thread)
            thread.start()

    def _serve(self, sock: socket.socket, peer: str) -> None:
        try:
            with sock:
                sock.settimeout(IDLE_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _Exchange(sock, peer, self._answer).run()
        except (OSError, h11.ProtocolError) as error:
            log.debug("connection ended", extra={"fields": {"peer": peer, "error": str(error)}})
        except Exception:
            log.exception("internal error while answering")
        finally:
            with self._lock:
                self._open.discard(sock)
                self._threads.discard(threading.current_thread())
            self._room.release()


class _Exchange:
    """One connection: requests in, answers out, one after the other."""

    def __init__(self, sock: socket.socket, peer: str, answer: Callable[[Request], Answer]) -> None:
        self._sock = sock
        self._peer = peer
        self._answer = answer
        self._protocol = h11.Connection(h11.SERVER)

    def run(self) -> None:
        while True:
            request = self._next_request()
            if request is None:
                return
            answer = self._respond(request)
            self._send(answer, is_head=request.method == "HEAD")
            fields = {"peer": self._peer, "path": "/".join(("", *request.path)), "status": answer.status}
            log.debug("answered", extra={"fields": fields})
            if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
                return
            self._protocol.start_next_cycle()

    def _respond(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return problem(405, f"{request.method} is not possible here", headers={"Allow": "GET, HEAD"})
        try:
            return self._answer(request)
        except Exception:
            log.exception("internal error while answering")
            return problem(500, "internal error; the log of the bus says more")

    def _next_request(self) -> Request | None:
        head: h11.Request | None = None
        body = 0
        while True:
            try:
                event = self._protocol.next_event()
            except h11.RemoteProtocolError as error:
                if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    self._send(problem(error.error_status_hint, str(error)), is_head=False)
                return None
            match event:
                case h11.NEED_DATA:
                    self._protocol.receive_data(self._sock.recv(READ_BYTES))
                case h11.Request():
                    head = event
                case h11.Data():
                    body += len(event.data)
                    if body > MOST_BODY_BYTES:
                        return None
                case h11.EndOfMessage() if head is not None:
                    return _request(head, self._peer)
                case _:
                    return None

    def _send(self, answer: Answer, *, is_head: bool) -> None:
        size = sum(map(len, answer.parts))
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(size)), *answer.headers]
        if answer.status == 304:
            headers = list(answer.headers)
        reason = HTTPStatus(answer.status).phrase.encode()
        response = h11.Response(status_code=answer.status, headers=headers, reason=reason)
        try:
            self._write(self._protocol.send(response))
            for part in () if is_head or answer.status == 304 else answer.parts:
                if len(part):
                    for piece in self._protocol.send_with_data_passthrough(h11.Data(data=part)) or ():  # type: ignore[arg-type]
                        self._write(piece)
            self._write(self._protocol.send(h11.EndOfMessage()))
        finally:
            for part in answer.parts:
                if isinstance(part, FilePart):
                    part.file.close()

    def _write(self, piece: Part | None) -> None:
        if isinstance(piece, FilePart):
            sent = self._sock.sendfile(piece.file, piece.at, piece.size)
            if sent != piece.size:
                raise OSError("a file is shorter than it was")
        elif piece:
            self._sock.sendall(piece)


def _request(head: h11.Request, peer: str) -> Request:
    target = urlsplit(head.target.decode("ascii"))
    return Request(
        head.method.decode("ascii"),
        tuple(unquote(level) for level in target.path.split("/") if level),
        dict(parse_qsl(target.query, keep_blank_values=True)),
        {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
        peer,
    )
