"""Real trucks on a real bus, over both protocols."""

import asyncio
from collections import Counter

import pytest

from polybus.client import connect
from polybus.fleet.calls import calls
from polybus.fleet.roads import make_country
from polybus.fleet.schedule import Plan, sendings
from polybus.fleet.sender import Sender
from tests.fleet.bus import running_bus

PLAN = Plan(make_country(5), 4, 5, 1_790_000_000_000, 1200.0, damaged_share=0.01)


@pytest.fixture(scope="module")
def bus(tmp_path_factory):
    with running_bus(tmp_path_factory.mktemp("bus")) as bus:
        yield bus


@pytest.mark.parametrize("scheme", ["mqtt", "tbus"])
def test_everything_planned_arrives_from_whom_it_should(bus, scheme):
    async def main():
        received = Counter()
        expected = Counter((each.topic, each.payload) for each in sendings(PLAN))
        is_complete = asyncio.Event()

        def take(message):
            received[message.topic, message.payload] += 1
            if received.total() >= expected.total():
                is_complete.set()

        async with connect(bus.url("mqtt"), client_id="watcher") as watcher:
            await watcher.subscribe("fleet/#", take, qos=1)
            totals = await Sender(PLAN, bus.url(scheme), 400.0).run()
            async with asyncio.timeout(20):
                await is_complete.wait()
        assert received == expected
        assert totals.messages.total() == expected.total()
        assert totals.payload_bytes == sum(len(payload) for _, payload in expected.elements())
        assert totals.ends.total() == sum(1 for _ in calls(PLAN))
        assert totals.ends["answered"] > 0

    asyncio.run(main())


def test_a_bus_that_is_not_there_is_an_error():
    from polybus.client import ConnectionFailed

    with pytest.raises(ConnectionFailed):
        asyncio.run(Sender(PLAN, "mqtt://127.0.0.1:1", 400.0).run())
