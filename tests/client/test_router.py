"""Which subscription gets what: shared filters, messages that nobody claims."""

import asyncio

import pytest

from polybus.client import BusEvent, MessagesDropped
from polybus.client.events import Receipt, Received
from polybus.client.message import Acknowledge, Message, SubscribeOptions, WhenFull
from polybus.client.router import Router
from polybus.client.subscription import Subscription
from tests.client.fake_broker import eventually


class Bench:
    """A router, what it acknowledged and what it told."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.events: list[BusEvent] = []
        self.router = Router(lambda receipt: self.acknowledged.append(receipt.packet_id), self.events.append)

    def subscription(self, *topic_filters: str) -> Subscription:
        return Subscription(
            None,  # type: ignore[arg-type] # is not asked for anything here
            tuple(SubscribeOptions(name, 1) for name in topic_filters),
            None,
            queue_size=10,
            acknowledge=Acknowledge.QUEUED,
            when_full=WhenFull.DROP,
            timeout_s=1,
        )

    def arrives(self, topic: str, packet_id: int = 0, identifiers: tuple[int, ...] = ()) -> None:
        self.router.begin_batch()
        receipt = Receipt(packet_id, packet_id) if packet_id else None
        self.router.deliver(Received(Message(topic, qos=1 if packet_id else 0), receipt, identifiers))


async def test_plain_and_shared_filters_of_one_path() -> None:
    bench = Bench()
    plain, shared = bench.subscription("a/+"), bench.subscription("$share/g/a/+")
    for subscription in (plain, shared):
        bench.router.add(subscription)
    bench.arrives("a/b")
    assert (len(plain), len(shared)) == (1, 1)
    assert bench.router.remove(plain) == (["a/+"], [])
    bench.arrives("a/b")
    assert (len(plain), len(shared)) == (1, 2)
    assert bench.router.remove(shared) == (["$share/g/a/+"], [])
    assert bench.router.subscriptions() == []


async def test_identifiers_are_the_same_in_every_process_and_never_shared() -> None:
    first, second = Bench(), Bench()
    names = [f"topic/{n}" for n in range(3000)]
    asked = first.router.add(first.subscription(*names))
    assert len({options.identifier for options in asked}) == len(names)
    assert second.router.add(second.subscription(names[7]))[0].identifier == asked[7].identifier


async def test_unknown_identifier_falls_back_to_the_filter() -> None:
    bench = Bench()
    subscription = bench.subscription("a")
    bench.router.add(subscription)
    bench.arrives("a", identifiers=(12345,))
    assert len(subscription) == 1


async def test_message_is_acknowledged_when_all_its_subscriptions_took_it() -> None:
    bench = Bench()
    both = [bench.subscription("a"), bench.subscription("#")]
    for subscription in both:
        bench.router.add(subscription)
    bench.arrives("a", 1)
    assert bench.acknowledged == [1]
    assert [len(subscription) for subscription in both] == [1, 1]


async def test_nobodys_message_is_acknowledged_and_forgotten() -> None:
    bench = Bench()
    bench.arrives("a", 1)
    assert bench.acknowledged == [1]
    assert bench.events == []


async def test_early_messages_of_a_kept_session_wait_in_order() -> None:
    bench = Bench()
    bench.router.keeps_unclaimed = True
    for packet_id, topic in enumerate(["a", "b", "a"], 1):
        bench.arrives(topic, packet_id)
    assert bench.acknowledged == []
    subscription = bench.subscription("a")
    bench.router.add(subscription)
    assert bench.acknowledged == [1, 3]
    assert len(subscription) == 2


async def test_what_nobody_claims_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.client.router.UNCLAIMED_FOR_S", 0.01)
    monkeypatch.setattr("polybus.client.router.MAX_UNCLAIMED", 2)
    bench = Bench()
    bench.router.keeps_unclaimed = True
    for packet_id in (1, 2, 3):
        bench.arrives("a", packet_id)
    assert bench.acknowledged == [1]  # there is room for two
    await eventually(lambda: bench.acknowledged == [1, 2, 3])
    assert bench.events == [MessagesDropped(("a",), 1)] * 3


async def test_closed_router_neither_takes_nor_acknowledges() -> None:
    bench = Bench()
    subscription = bench.subscription("a")
    bench.router.add(subscription)
    bench.router.close()
    bench.arrives("a", 1)
    assert (len(subscription), bench.acknowledged) == (0, [])
    await asyncio.sleep(0)
