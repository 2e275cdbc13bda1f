"""A connection as the core sees it: an outbox, a way to encode, and an end.

Protocols subclass `Link` in `polybus.session`. The core appends ready bytes to `outbox` and notes
the link as dirty; at the end of the tick the link writes its outbox in one go.
"""

from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from polybus.broker.message import Delivery, Message, Run

if TYPE_CHECKING:
    from polybus.broker.request import Request
    from polybus.broker.sessions import Session


class EndCause(Enum):
    """Why the broker ends a connection."""

    TAKEN_OVER = auto()
    SHUTTING_DOWN = auto()
    KEEP_ALIVE_TIMEOUT = auto()


class Encoding(Protocol):
    """How a protocol variant writes a delivery.

    A `shared` encoding gives the same bytes for every link that has it, so one result serves a
    hundred subscribers; a private one (topic aliases, packet size limits) belongs to one link.
    """

    shared: bool
    name: str
    """In the durable store. Runs come in by shared encodings only; others need none."""

    def frame(self, delivery: Delivery, now: float) -> tuple[bytes, bytes] | None:
        """The bytes before and after the packet id (QoS 0 has none: they are joined as they are).

        None: this link cannot take the message.
        """

    def split(self, run: Run) -> list[Message]:
        """The messages of a run that came in by this encoding."""


class Port(Protocol):
    """The transport below a link. asyncio's transports are ports as they are."""

    def write(self, data: bytes) -> None: ...

    def writelines(self, data: list[bytes]) -> None: ...

    def close(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Link:
    """Base of every protocol's connection. The core owns `outbox`, `held` and `blocked`."""

    __slots__ = (
        "backlog_bytes",
        "blocked",
        "bytes_in",
        "bytes_out",
        "encoding",
        "gated",
        "held",
        "held_count",
        "messages_dropped",
        "messages_in",
        "messages_out",
        "outbox",
        "port",
        "session",
        "unsent",
        "urgent",
        "waits_for",
    )

    def __init__(self, port: Port, encoding: Encoding) -> None:
        self.port = port
        self.encoding = encoding
        self.session: Session | None = None
        self.outbox: list[bytes] = []
        self.held: list[bytes] = []
        """Acknowledgements, and QoS 2 packets to a kept session, that wait for the tick's commit."""
        self.held_count = 0
        """The same, with those whose commit is under way."""
        self.waits_for = 0
        """The commit that it must not overtake."""
        self.gated = False
        """Nothing leaves before that commit: it was told of an end that is not safe yet."""
        self.blocked = False
        """The transport takes no more for now."""
        self.backlog_bytes = 0
        """What outbox, `urgent` and `unsent` hold while blocked."""
        self.unsent: list[tuple[bytes, int]] | None = None
        """QoS 0 that came while blocked, with the number of messages of each piece: the first to go
        when memory is short."""
        self.urgent: list[tuple[bytes, int]] | None = None
        """The same of priority messages, which go out first and are given up last (TB-11)."""
        self.messages_in = self.bytes_in = 0
        self.messages_out = self.bytes_out = self.messages_dropped = 0

    def flush(self) -> None:
        """Write the outbox in one go, unless the transport is full."""
        outbox = self.outbox
        if self.blocked or not outbox or self.gated:
            return
        if len(outbox) == 1:
            data = outbox[0]
            self.bytes_out += len(data)
            self.outbox = []
            self.port.write(data)
            return
        size = sum(map(len, outbox))
        self.bytes_out += size
        self.outbox = []
        # Large pieces are shared between subscribers: joining them would copy them for each.
        if size > 16_384 * len(outbox):
            self.port.writelines(outbox)
        else:
            self.port.write(b"".join(outbox))

    def take_turn(self, now: float) -> None:
        """Go on with what was left when the link began to wait for its turn."""
        raise NotImplementedError

    def stall(self) -> None:
        """Read nothing more for now: what this peer published waits for the disk."""

    def go_on(self, now: float) -> None:
        """Read again after `stall`."""

    def withhold(self, acknowledgements: list[bytes], why: str) -> None:
        """What these acknowledge is not safe and never will be: tell the peer, as its protocol says, if it is
        still there."""

    def access_changed(self) -> None:
        """Told when the rules of who may do what have changed."""

    def released(self, acknowledgements: list[bytes]) -> None:
        """Told when acknowledgements that waited for the commit went to the outbox."""

    def wait_for_commit(self) -> None:
        """Told when it has as many acknowledgements waiting as it may: read nothing until `released`."""

    def encode_again(self, packet_id: int, delivery: Delivery | None, now: float) -> bytes | None:
        """A delivery sent before, for a client that came back; without delivery, its release."""
        raise NotImplementedError

    def offer_frame(self, delivery: Delivery, now: float) -> tuple[bytes, bytes] | None:
        """A message that waits here, for a neighbour: the bytes before and after the packet id."""
        return None

    def request_frame(self, request: "Request", now: float) -> bytes | None:
        """A request for the service behind this link; None: it cannot take this one."""
        return None

    def cancel_frame(self, request: "Request") -> bytes | None:
        """Tells a service that a request it has in hand needs no answer; None: its protocol cannot."""
        return None

    def outcome(self, request: "Request", now: float) -> "bytes | Delivery | None":
        """The answer (`request.is_answered`) or the end of its request, for the requester behind this
        link; None: it cannot be told now."""
        return None

    def end(self, cause: EndCause, text: str = "") -> None:
        """Tell the peer, as its protocol says, and close."""
        raise NotImplementedError
