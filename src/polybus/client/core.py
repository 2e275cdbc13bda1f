"""What the link needs from a protocol. `MqttCore` is one; other protocols can stand in its place.

A core does no I/O and reads no clock. It outlives connections: what belongs to the session
(unacknowledged messages, subscriptions) stays in it from one `connect` to the next.

Every change may produce bytes; the link fetches them with `take_output` and writes them. An
operation returns a token at once; a later `Completed` or `Failed` carries the same token.
"""

from typing import Protocol

from polybus.client.events import CoreEvent, Receipt
from polybus.client.message import Message, SubscribeOptions


class Core(Protocol):
    @property
    def has_properties(self) -> bool:
        """Whether messages and subscriptions can have MQTT 5.0's properties and options."""

    def connect(self, *, now: float) -> None:
        """Start over on a fresh connection."""

    def connection_lost(self) -> None:
        """The connection is gone; what was not acknowledged waits for the next one."""

    def receive(self, data: bytes, *, now: float) -> list[CoreEvent]: ...

    def take_output(self) -> bytes: ...

    @property
    def pending_output(self) -> int:
        """Bytes that wait in `take_output`."""

    def deadline(self) -> float | None:
        """When `tick` has to be called next."""

    def tick(self, *, now: float, is_reading: bool = True) -> list[CoreEvent]:
        """`is_reading` is false while we do not read: the peer's silence is then our own doing."""

    def publish(self, message: Message, *, now: float) -> int:
        """Send `message`. 0 means that nothing will acknowledge it.

        Raises `PublishRefused` if the broker announced that it does not take such a message.
        """

    def subscribe(self, options: SubscribeOptions, *, now: float) -> int:
        """Raises `SubscribeRefused` if the broker announced that it does not take such a filter."""

    def unsubscribe(self, topic_filter: str, *, now: float) -> int: ...

    def abandon(self, token: int) -> bool:
        """Nobody waits for this operation any more. True if it was withdrawn before it was sent."""

    def acknowledge(self, receipt: Receipt, *, now: float) -> None: ...

    def disconnect(self, *, now: float) -> None: ...
