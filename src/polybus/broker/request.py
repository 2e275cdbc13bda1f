"""One request, from publish to answer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from polybus.broker.lifecycle import RequestState
from polybus.broker.message import NO_MESSAGE_PROPERTIES, Message, MessageProperties
from polybus.broker.sessions import NEIGHBOR_MARK

if TYPE_CHECKING:
    from polybus.broker.services import Desk, Instance
    from polybus.broker.storage import Stored


class Request:
    __slots__ = (
        "answer",
        "answer_properties",
        "attempt",
        "created_at",
        "deadline",
        "desk",
        "given_at",
        "handle",
        "instance",
        "is_under_way",
        "late",
        "losses",
        "may_wait",
        "message",
        "on_expiry",
        "owner",
        "packet_id",
        "reason",
        "serial",
        "state",
        "stored",
        "unable",
    )

    def __init__(
        self, message: Message, owner: str, packet_id: int, serial: int, *, may_wait: bool, now: float
    ) -> None:
        self.message = message
        """Its origin is the requester's client id."""
        self.owner = owner
        """Who may hear of it: `Session.owner` of the requester."""
        self.packet_id = packet_id
        self.serial = serial
        self.may_wait = may_wait
        self.created_at = now
        self.deadline = now
        self.state = RequestState.NEW
        self.is_under_way = True
        """Something may still happen to it, if only that its requester is told."""
        self.desk: Desk | None = None
        """Who was there when it came; used at once or never."""
        self.instance: Instance | None = None
        self.given_at = now
        self.losses = 0
        """Instances that went away with it."""
        self.late: set[Instance] | None = None
        """Instances that let their time pass: asked again only if nobody else is left."""
        self.unable: set[Instance] | None = None
        """Instances for which it is too large."""
        self.answer: bytes | None = None
        self.answer_properties: MessageProperties = NO_MESSAGE_PROPERTIES
        self.reason = ""
        """Why it ended without an answer, for people."""
        self.stored: Stored | None = None
        self.handle = 0
        self.attempt: Attempt | None = None
        self.on_expiry: Callable[[Request, float], None] | None = None

    @property
    def client_id(self) -> str:
        return self.message.origin

    @property
    def is_foreign(self) -> bool:
        """A neighbour asks, for one of its clients: no other neighbour gets it."""
        return self.message.origin.startswith(NEIGHBOR_MARK)

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def is_answered(self) -> bool:
        """The requester is to get the answer rather than the news of another end."""
        return self.state in (RequestState.ANSWERED, RequestState.ANSWER_STORED)

    def answer_bytes(self) -> int:
        return 0 if self.answer is None else len(self.answer) + self.answer_properties.size_bytes()

    def on_timer(self, now: float) -> None:
        self.handle = 0
        if self.on_expiry is not None:
            self.on_expiry(self, now)


class Attempt:
    """The time an instance has for a request."""

    __slots__ = ("_on_late", "_request", "handle")

    def __init__(self, request: Request, on_late: Callable[[Request, float], None]) -> None:
        self._request = request
        self._on_late = on_late
        self.handle = 0

    def on_timer(self, now: float) -> None:
        self.handle = 0
        self._on_late(self._request, now)
