"""What a protocol core reports to the link that drives it, and what a bus tells its owner."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from polybus.client.errors import ClientError
from polybus.client.message import Message

# --- core -> link ---------------------------------------------------------------------------------


class Receipt(NamedTuple):
    """Names a received message of QoS 1 or 2 until it is acknowledged."""

    serial: int
    packet_id: int


class ReturnAddress(NamedTuple):
    """Where the answer to a request goes, and what tells the requester which one it is.

    TBus: ResponseDestination and PacketId; MQTT 5.0: Response Topic and Correlation Data.
    """

    destination: str
    key: int | bytes | None


class Accepted(NamedTuple):
    """The broker answered the connect with yes. `requests` are unfinished ones that were sent again."""

    session_present: bool
    client_id: str
    resent: int
    renewed: tuple[str, ...]
    requests: int = 0


class Received(NamedTuple):
    """`identifiers` are the subscriptions meant; empty where the protocol does not say."""

    message: Message
    receipt: Receipt | None
    identifiers: tuple[int, ...]


class Requested(NamedTuple):
    """Someone asks. A managed request goes to a service and to nobody else."""

    message: Message
    answer_to: ReturnAddress
    identifiers: tuple[int, ...] = ()


class Withdrawn(NamedTuple):
    """A request that was given to us is canceled: no answer is wanted."""

    answer_to: ReturnAddress


class Unclaimed(NamedTuple):
    """The end of a request of ours that this client does not know: it was made before it started."""

    request_id: int
    end: "Message | ClientError"


class Completed(NamedTuple):
    """An operation came to its end; a request with its answer."""

    token: int
    answer: Message | None = None


class Failed(NamedTuple):
    """An operation was refused; the connection goes on."""

    token: int
    error: ClientError


class RenewalRefused(NamedTuple):
    """After a reconnect the broker no longer grants a subscription that it had granted before."""

    error: ClientError


class Ended(NamedTuple):
    """The connection is over. `may_retry` is false where connecting again can only fail again.
    `elsewhere` are brokers (host:port) that this one named in its place."""

    error: ClientError
    may_retry: bool = True
    elsewhere: tuple[str, ...] = ()


CoreEvent: TypeAlias = (
    Accepted | Received | Requested | Withdrawn | Unclaimed | Completed | Failed | RenewalRefused | Ended
)


# --- bus -> application ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Connected:
    """Connected, at first (`attempt` 0) or again, by the nth attempt after a loss.

    `resent` counts the unacknowledged publishes that were sent again and `requests` the unfinished
    requests, `renewed` names the subscriptions that were made again because the broker had not kept
    the session.
    """

    client_id: str
    session_present: bool
    attempt: int = 0
    resent: int = 0
    renewed: tuple[str, ...] = ()
    requests: int = 0


@dataclass(frozen=True)
class Disconnected:
    """The connection was lost."""

    error: ClientError


@dataclass(frozen=True)
class Reconnecting:
    """Attempt number `attempt` follows in `delay_s` seconds; `error` is what ended the last one."""

    attempt: int
    delay_s: float
    error: ClientError


@dataclass(frozen=True)
class SubscriptionLost:
    """A subscription could not be renewed after a reconnect."""

    error: ClientError


@dataclass(frozen=True)
class MessagesDropped:
    """`count` more messages were dropped: no room in the queue, or no subscription wanted them."""

    topic_filters: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class HandlerFailed:
    """A callback or service raised; it goes on with the next message."""

    topic_filters: tuple[str, ...]
    message: Message
    error: Exception


@dataclass(frozen=True)
class ServiceFailed:
    """A service that was added to an open bus could not be started."""

    topic_filter: str
    error: ClientError


@dataclass(frozen=True)
class AnswerUnclaimed:
    """The end of a request that an earlier run with this client id made (`clean_start=False`)."""

    request_id: int
    end: Message | ClientError


@dataclass(frozen=True)
class Closed:
    """The bus is over; `error` is None if its owner asked for that."""

    error: ClientError | None = None


BusEvent: TypeAlias = (
    Connected
    | Disconnected
    | Reconnecting
    | SubscriptionLost
    | MessagesDropped
    | HandlerFailed
    | ServiceFailed
    | AnswerUnclaimed
    | Closed
)
