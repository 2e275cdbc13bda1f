"""Which of a bus's subscriptions gets which message, and which of its services which request."""

import asyncio
import zlib
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from polybus.broker.topics import parse_filter
from polybus.broker.tree import TopicTree
from polybus.client.events import BusEvent, MessagesDropped, Receipt, Received, Requested, ReturnAddress
from polybus.client.message import SubscribeOptions
from polybus.client.service import Service
from polybus.client.subscription import Subscription, Ticket
from polybus.wire.mqtt.packets import NO_PROPERTIES

MAX_LEVELS: Final = 0xFFFF
MAX_CACHED_TOPICS: Final = 4096
MAX_UNCLAIMED: Final = 1000
UNCLAIMED_FOR_S: Final = 10.0
_IDENTIFIER_BITS: Final = 0x1F_FFFF  # three bytes on the wire


NEVER_REPLAY: Final = 2
"""Retain handling: no retained messages, for the subscription is not new to those who have it."""


class Entry:
    """A topic filter as the broker knows it: once, however many subscriptions and services share it."""

    def __init__(self, options: SubscribeOptions) -> None:
        self.options = options
        self.path = parse_filter(options.topic_filter, MAX_LEVELS).path
        self.subscriptions: list[Subscription] = []
        self.services: list[Service] = []

    def add(self, taker: Subscription | Service) -> None:
        if isinstance(taker, Service):
            self.services.append(taker)
        else:
            self.subscriptions.append(taker)

    def remove(self, taker: Subscription | Service) -> bool:
        """False if it was not there."""
        takers: list[Subscription] | list[Service] = (
            self.services if isinstance(taker, Service) else self.subscriptions
        )
        if taker not in takers:
            return False
        takers.remove(taker)  # type: ignore[arg-type] # of the kind that was chosen
        return True

    def concurrency(self) -> int:
        return sum(service.concurrency for service in self.services)


class Router:
    """Routes by subscription identifier where the broker sends them, else by topic filter.

    Without identifiers a broker that sends one copy per overlapping filter cannot be told from one
    that sends one copy for all. Identifiers are made from the filter's text, so that messages which
    a kept session still holds from an earlier process find their way too.
    """

    def __init__(self, acknowledge: Callable[[Receipt], None], emit: Callable[[BusEvent], None]) -> None:
        self._acknowledge = acknowledge
        self._emit = emit
        self._entries: dict[str, Entry] = {}
        self._by_identifier: dict[int, Entry] = {}
        self._by_path: TopicTree[list[Entry]] = TopicTree()  # a filter and its shared ones have one path
        self._by_topic: dict[str, tuple[Subscription, ...]] = {}
        self._services_by_topic: dict[str, tuple[Service, ...]] = {}
        self._unclaimed: deque[tuple[float, Received]] = deque()  # with their deadlines
        self._batch = 0
        self._is_closed = False
        self.keeps_unclaimed = False
        """True after a connect that found a kept session: its messages come before anyone subscribes."""

    def subscriptions(self) -> list[Subscription]:
        found = [sub for entry in self._entries.values() for sub in entry.subscriptions]
        return list(dict.fromkeys(found))

    def services(self) -> list[Service]:
        return [service for entry in self._entries.values() for service in entry.services]

    def add(self, taker: Subscription | Service) -> list[SubscribeOptions]:
        """Returns what to ask the broker for."""
        asked = []
        for options in taker.options:
            entry = self._entries.get(options.topic_filter)
            if entry is None:
                identifier = self._free_identifier(options.topic_filter)
                entry = Entry(msgspec.structs.replace(options, identifier=identifier))
                self._insert(entry)
            else:
                qos = max(options.qos, entry.options.qos)
                identifier = entry.options.identifier
                entry.options = msgspec.structs.replace(options, qos=qos, identifier=identifier)
            entry.add(taker)
            entry.options = msgspec.structs.replace(entry.options, concurrency=entry.concurrency())
            asked.append(entry.options)
        self._forget_plans()
        self._offer_unclaimed()
        return asked

    def remove(self, taker: Subscription | Service) -> tuple[list[str], list[SubscribeOptions]]:
        """Returns the filters that nobody wants any more, and those that are to be asked for anew
        because fewer requests are taken."""
        unwanted: list[str] = []
        changed: list[SubscribeOptions] = []
        for topic_filter in taker.topic_filters:
            entry = self._entries.get(topic_filter)
            if entry is None or not entry.remove(taker):
                continue
            if not entry.subscriptions and not entry.services:
                self._delete(entry)
                unwanted.append(topic_filter)
            elif isinstance(taker, Service):
                entry.options = msgspec.structs.replace(entry.options, concurrency=entry.concurrency())
                changed.append(msgspec.structs.replace(entry.options, retain_handling=NEVER_REPLAY))
        self._forget_plans()
        return unwanted, changed

    def begin_batch(self) -> None:
        self._batch += 1

    def close(self) -> None:
        """From here on messages are neither taken nor acknowledged."""
        self._is_closed = True
        self._unclaimed.clear()

    def deliver(self, received: Received) -> None:
        if self._is_closed:
            return
        targets = self._targets(received)
        properties = received.message.properties
        was_taken = False
        if properties is not NO_PROPERTIES and properties.response_topic is not None:
            # MQTT 5.0's own request and response: for whoever gets it to answer.
            answer_to = ReturnAddress(properties.response_topic, properties.correlation_data)
            was_taken = self.deliver_request(Requested(received.message, answer_to, received.identifiers))
        if targets:
            self._hand_over(received, targets)
        elif self.keeps_unclaimed and not was_taken:
            self._keep(received)
        elif received.receipt is not None:
            self._acknowledge(received.receipt)

    def deliver_request(self, requested: Requested) -> bool:
        """False: there is no service for it."""
        if self._is_closed:
            return True  # the broker gives it to someone else when we are gone
        message, answer_to, identifiers = requested
        services = self._services(message.topic, identifiers)
        if not services:
            return False
        service = services[0] if len(services) == 1 else min(services, key=_load)
        service.offer(message, answer_to)
        return True

    def withdraw_request(self, answer_to: ReturnAddress) -> None:
        for service in self.services():
            service.withdraw(answer_to)

    def _services(self, topic: str, identifiers: tuple[int, ...]) -> tuple[Service, ...]:
        named = [self._by_identifier[n] for n in identifiers if n in self._by_identifier]
        if named:
            return tuple(service for entry in named for service in entry.services)
        services = self._services_by_topic.get(topic)
        if services is None:
            matching = (entry for entries in self._by_path.match_name(topic) for entry in entries)
            services = tuple(service for entry in matching for service in entry.services)
            if len(self._services_by_topic) >= MAX_CACHED_TOPICS:
                self._services_by_topic.clear()
            self._services_by_topic[topic] = services
        return services

    def _forget_plans(self) -> None:
        self._by_topic.clear()
        self._services_by_topic.clear()

    def _hand_over(self, received: Received, targets: tuple[Subscription, ...]) -> None:
        message, receipt, _ = received
        ticket = None if receipt is None else Ticket(receipt, len(targets), self._acknowledge)
        for subscription in targets:
            subscription.offer(message, ticket, self._batch)

    def _targets(self, received: Received) -> tuple[Subscription, ...]:
        named = [self._by_identifier[n] for n in received.identifiers if n in self._by_identifier]
        if named:
            return tuple(dict.fromkeys(sub for entry in named for sub in entry.subscriptions))
        topic = received.message.topic
        targets = self._by_topic.get(topic)
        if targets is None:
            matching = (entry for entries in self._by_path.match_name(topic) for entry in entries)
            targets = tuple(dict.fromkeys(sub for entry in matching for sub in entry.subscriptions))
            if len(self._by_topic) >= MAX_CACHED_TOPICS:
                self._by_topic.clear()
            self._by_topic[topic] = targets
        return targets

    def _insert(self, entry: Entry) -> None:
        self._entries[entry.options.topic_filter] = entry
        self._by_identifier[entry.options.identifier] = entry
        self._by_path.put(entry.path, [*(self._by_path.get(entry.path) or []), entry])

    def _delete(self, entry: Entry) -> None:
        del self._entries[entry.options.topic_filter]
        del self._by_identifier[entry.options.identifier]
        others = [each for each in self._by_path.get(entry.path) or [] if each is not entry]
        if others:
            self._by_path.put(entry.path, others)
        else:
            self._by_path.remove(entry.path)

    def _free_identifier(self, topic_filter: str) -> int:
        identifier = zlib.crc32(topic_filter.encode()) & _IDENTIFIER_BITS or 1
        while identifier in self._by_identifier:
            identifier = identifier % _IDENTIFIER_BITS + 1
        return identifier

    # --- messages that come before their subscription ---------------------------------------------

    def _keep(self, received: Received) -> None:
        loop = asyncio.get_running_loop()
        if not self._unclaimed:
            loop.call_later(UNCLAIMED_FOR_S, self._give_up_the_old)
        self._unclaimed.append((loop.time() + UNCLAIMED_FOR_S, received))
        if len(self._unclaimed) > MAX_UNCLAIMED:
            self._give_up_first()

    def _offer_unclaimed(self) -> None:
        self.begin_batch()
        for _ in range(len(self._unclaimed)):
            deadline, received = self._unclaimed.popleft()
            targets = self._targets(received)
            if targets:
                self._hand_over(received, targets)
            else:
                self._unclaimed.append((deadline, received))

    def _give_up_the_old(self) -> None:
        loop = asyncio.get_running_loop()
        while self._unclaimed and self._unclaimed[0][0] <= loop.time():
            self._give_up_first()
        if self._unclaimed:
            loop.call_at(self._unclaimed[0][0], self._give_up_the_old)

    def _give_up_first(self) -> None:
        _, received = self._unclaimed.popleft()
        if received.receipt is not None:
            self._acknowledge(received.receipt)
        self._emit(MessagesDropped((received.message.topic,), 1))


def _load(service: Service) -> float:
    return service.in_hand / service.concurrency
