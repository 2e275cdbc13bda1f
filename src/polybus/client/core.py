"""What the link needs from a protocol: `MqttCore` and `TbusCore` are the two there are.

A core does no I/O and reads no clock. It outlives connections: what belongs to the session
(unacknowledged messages, unfinished requests, subscriptions) stays in it from one `connect` to the next.

Every change may produce bytes; the link fetches them with `take_output` and writes them. An
operation returns a token at once; a later `Completed` or `Failed` carries the same token.
"""

from typing import Protocol

from polybus.client.events import CoreEvent, Receipt, ReturnAddress
from polybus.client.message import Message, SubscribeOptions


class Core(Protocol):
    @property
    def protocol(self) -> str:
        """Its name, for people."""

    @property
    def has_properties(self) -> bool:
        """Whether messages and subscriptions can have MQTT 5.0's properties and options."""

    @property
    def has_requests(self) -> bool:
        """Whether it knows requests, priority and waiting."""

    def connect(self, *, now: float) -> None:
        """Start over on a fresh connection."""

    def connection_lost(self) -> None:
        """The connection is gone; what was not acknowledged waits for the next one."""

    def receive(self, data: bytes, *, now: float) -> list[CoreEvent]: ...

    def take_output(self, *, now: float) -> bytes:
        """What is to be written now; some may have to wait for `deadline`."""

    @property
    def pending_output(self) -> int:
        """Bytes that wait in `take_output`."""

    def deadline(self) -> float | None:
        """When `tick` has to be called next, connected or not."""

    def tick(self, *, now: float, is_reading: bool = True) -> list[CoreEvent]:
        """`is_reading` is false while we do not read: the peer's silence is then our own doing."""

    def publish(self, message: Message, wait_s: int = 0, *, now: float) -> int:
        """Send `message`, which may wait `wait_s` for a subscriber. 0: nothing will acknowledge it.

        Raises `PublishRefused` if the broker announced that it does not take such a message.
        """

    def subscribe(self, options: SubscribeOptions, *, now: float) -> int:
        """Raises `SubscribeRefused` if the broker announced that it does not take such a filter."""

    def unsubscribe(self, topic_filter: str, *, now: float) -> int: ...

    def abandon(self, token: int, *, now: float) -> bool:
        """Nobody waits for this operation any more; a request is canceled all the way to its service.
        True if it was withdrawn before it was sent."""

    def acknowledge(self, receipt: Receipt, *, now: float) -> None: ...

    # --- requests ---------------------------------------------------------------------------------

    @property
    def takes_requests(self) -> bool:
        """False while so many are unfinished that there is no number left for another."""

    def request(self, message: Message, timeout_s: float, may_wait: bool, *, now: float) -> int:
        """Ask. `Completed` brings the answer, `Failed` a `RequestFailed`; at the latest a little after
        `timeout_s`, whether the broker says so or not."""

    def request_id(self, token: int) -> int:
        """The number by which the broker knows an unfinished request (TBus: PacketId)."""

    def answer(self, to: ReturnAddress, request: Message, payload: bytes, *, now: float) -> None:
        """Without a connection the answer is lost: the broker gives the request to someone else."""

    def fail(self, to: ReturnAddress, request: Message, reason: str, *, now: float) -> None:
        """Tell a requester that its request could not be done."""

    # --- the end ----------------------------------------------------------------------------------

    def prepare_goodbye(self, reason_code: int, reason: str) -> None:
        """What `disconnect` is to say. Raises `UsageError` for what the protocol cannot say."""

    def disconnect(self, *, now: float) -> None: ...
