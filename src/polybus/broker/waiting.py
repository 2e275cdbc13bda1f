"""Messages that wait for a subscriber (TB-09): they go into storage, and out when someone comes, here or at a
neighbour (TB-15)."""

from collections.abc import Callable

from polybus.broker import events
from polybus.broker.dispatch import Dispatcher
from polybus.broker.events import emit
from polybus.broker.message import Message
from polybus.broker.neighbors import Neighborhood
from polybus.broker.storage import Kind, Storage, Stored
from polybus.broker.subscriptions import Plan, Subscriptions
from polybus.broker.timers import Timers


class Waiting:
    """Puts plain messages into storage and takes them out. `publish_again` gets those that someone takes."""

    def __init__(
        self,
        storage: Storage,
        dispatcher: Dispatcher,
        timers: Timers,
        subscriptions: Subscriptions,
        publish_again: Callable[[Plan, Message], None],
    ) -> None:
        self.mesh = Neighborhood()
        self._storage = storage
        self._dispatcher = dispatcher
        self._ledger = dispatcher.ledger
        self._timers = timers
        self._stats = dispatcher.stats
        self._subscriptions = subscriptions
        self._publish_again = publish_again

    def store(self, message: Message, plan: Plan) -> None:
        """Nobody of this plan is here to take it."""
        stored = Stored(Kind.MESSAGE, message, None, message.size_bytes(), self._dispatcher.now)
        if not self._storage.put(stored):
            self.discarded(message, "there is no room to store it")
            return
        if self._ledger.is_durable:
            stored.number = self._ledger.add_stored(message)
        self._schedule_expiry(stored)
        emit(events.MESSAGE_STORED, client_id=message.origin, topic=message.topic)
        self.mesh.offer(stored, plan)

    def put_back(self, message: Message, number: int) -> None:
        """One that waited when the broker was stopped."""
        stored = Stored(Kind.MESSAGE, message, None, message.size_bytes(), self._dispatcher.now)
        stored.number = number
        if self._storage.put(stored):
            self._schedule_expiry(stored)
        else:
            self._gone(stored)
            self.discarded(message, "there is no room to store it")

    def release(self, path: str) -> None:
        """Someone subscribed: what waited for a subscription like this is published."""
        for stored in list(self._storage.matching(Kind.MESSAGE, path)):
            self.release_one(stored)

    def release_one(self, stored: Stored) -> None:
        """If someone here takes it, and no neighbour may have done so already."""
        message = stored.message
        plan = self._subscriptions.plan(self._subscriptions.route_of(message.topic))
        if self.mesh.is_offered(stored) or not plan.reaches(message.origin, message.qos):
            return
        self.take(stored)
        self._publish_again(plan, message)
        emit(
            events.MESSAGE_RESTORED,
            client_id=message.origin,
            topic=message.topic,
            duration_s=round(self._dispatcher.now - stored.since, 6),
        )

    def take(self, stored: Stored) -> None:
        """It need not wait any more."""
        self._storage.take(stored)
        self._timers.cancel(stored.handle)
        self._gone(stored)

    def discarded(self, message: Message, reason: str) -> None:
        self._stats.stored_discarded += 1
        emit(events.MESSAGE_DISCARDED, client_id=message.origin, topic=message.topic, reason=reason)

    def victim(self, stored: Stored) -> None:
        """Storage gave it up."""
        self._timers.cancel(stored.handle)
        self._gone(stored)
        self.discarded(stored.message, "the storage is full")

    def _schedule_expiry(self, stored: Stored) -> None:
        expires_at = stored.message.expires_at
        if expires_at is not None:
            stored.on_expiry = self._on_expiry
            stored.handle = self._timers.schedule(expires_at, stored)

    def _on_expiry(self, stored: Stored, now: float) -> None:
        self._storage.take(stored)
        self._gone(stored)
        self._stats.dropped_expired += 1
        emit(events.MESSAGE_EXPIRED, client_id=stored.message.origin, topic=stored.message.topic)

    def _gone(self, stored: Stored) -> None:
        self.mesh.forget(stored)
        if stored.number:
            self._ledger.stored_gone(stored.number)
