"""A client program that is told line by line what to do: the Python twin and the C++ one understand the same.

Each command has one reply, `ok …` or `error KIND TEXT`; what happens by itself is a line that begins with
`! `. Payloads are hex digits, `-` for none.
"""

import queue
import subprocess
import threading
from typing import Self

from tests.e2e.processes import PATIENCE_S


class Refused(AssertionError):
    """The reply to a command was an error: `kind`, and the rest as `text`."""

    def __init__(self, command: str, reply: str) -> None:
        super().__init__(f"{command!r} was answered {reply!r}")
        _, self.kind, self.text = [*reply.split(" ", 2), ""][:3]


class LinePeer:
    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._replies: queue.Queue[str] = queue.Queue()
        self._news: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdin.close()  # the end of its orders is the end of its work
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            if error[0] is None:
                raise
        self._reader.join()
        complaints = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        if error[0] is None:
            assert self.process.returncode == 0, complaints

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            text = line.rstrip("\n")
            (self._news if text.startswith("! ") else self._replies).put(text.removeprefix("! "))
        self._replies.put("error ended the program has ended")
        self._news.put("ended")

    def say(self, *words: object) -> str:
        """Give a command; what follows `ok`. Raises `Refused`."""
        command = " ".join(map(str, words))
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        reply = self._replies.get(timeout=PATIENCE_S)
        word, _, rest = reply.partition(" ")
        if word != "ok":
            raise Refused(command, reply)
        return rest

    # -- what the tests say -----------------------------------------------------------------------------

    def connect(
        self, port: int, client_id: str, *, clean: bool = True, keep_alive_s: int = 60, bulk: str = "adaptive"
    ) -> Self:
        self.say("connect", "127.0.0.1", port, client_id, int(clean), keep_alive_s, bulk)
        while self.news() != "connected":  # news of an earlier connection
            pass
        return self

    def publish(self, topic: str, payload: bytes, *, priority: bool = False, timeout_s: int = 0) -> None:
        self.say("publish", topic, _hex(payload), int(priority), timeout_s)

    def request(self, topic: str, payload: bytes, *, priority: bool = False, timeout_s: int = 20) -> int:
        return int(self.say("request", topic, _hex(payload), int(priority), timeout_s))

    def answer(self, request: int) -> bytes:
        """Of a request that is under way. Raises `Refused` with how else it ended."""
        return _bytes(self.say("await", request))

    def serve(self, topic_filter: str, behaviour: str, *argument: object, concurrency: int = 1) -> None:
        self.say("serve", topic_filter, behaviour, *argument, concurrency)

    # -- what happens by itself ---------------------------------------------------------------------------

    def news(self) -> str:
        return self._news.get(timeout=PATIENCE_S)

    def message(self) -> tuple[str, bytes]:
        """The next message, which must be the next thing that happens."""
        kind, topic, payload = self.news().split(" ")
        assert kind == "message"
        return topic, _bytes(payload)

    def given(self) -> tuple[str, bytes, bool]:
        """The next request it was given: topic, payload, whether it has priority."""
        kind, topic, payload, priority = self.news().split(" ")
        assert kind == "request"
        return topic, _bytes(payload), priority == "1"

    def has_news(self) -> bool:
        return not self._news.empty()


def _hex(payload: bytes) -> str:
    return payload.hex() or "-"


def _bytes(text: str) -> bytes:
    return b"" if text == "-" else bytes.fromhex(text)
