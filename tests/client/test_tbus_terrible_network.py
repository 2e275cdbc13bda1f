"""A TBus core and a small broker over a network that breaks at any byte.

Each seed is one history of requests, cancels, answers and losses. Afterwards the network heals, and then:
every request has ended, exactly once, with its own answer or because its time was over or it was canceled;
the broker never saw a PacketId used for two requests at once.
"""

import random

import pytest

from polybus.client.errors import RequestTimeout
from polybus.client.events import Completed, Failed
from polybus.client.message import Message
from polybus.client.tbus_core import State, TbusCore
from polybus.client.tbus_settings import TbusSettings
from polybus.session.tbus.options import BulkMode
from polybus.wire.tbus.codec import decode, encode, frames, next_frame
from polybus.wire.tbus.packets import (
    Bulk,
    ConnAck,
    Connect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    ReqAck,
    RequestState,
)

STEPS = 400
TIMEOUT_S = 30.0


class SmallBroker:
    """Knows one client, and keeps its requests and their ends while it is away, as TBus says."""

    def __init__(self, chance: random.Random) -> None:
        self.output = b""
        self._chance = chance
        self._input = b""
        self._is_connected = False
        self.under_way: dict[int, Publish] = {}
        self._stored: list[Packet] = []

    def lose(self) -> None:
        self._is_connected = False
        self.output = self._input = b""

    def receive(self, data: bytes) -> None:
        self._input += data
        while (frame := next_frame(self._input, 0, 1 << 20)) is not None:
            first_byte, start, end = frame
            body, self._input = self._input[start:end], self._input[end:]
            packet = decode(first_byte, body)
            if isinstance(packet, Bulk):
                for kind, begin, stop in frames(body):
                    self._handle(decode(kind, body[begin:stop]))
            else:
                self._handle(packet)

    def answer_one(self) -> None:
        if self.under_way:
            packet_id = self._chance.choice(list(self.under_way))
            self._end(packet_id)

    def _end(self, packet_id: int) -> None:
        request = self.under_way.pop(packet_id)
        end = Publish(None, request.payload, is_response=True, response_destination="c", packet_id=packet_id)
        if self._is_connected:
            self._send(end)
        else:
            self._stored.append(end)

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Connect():
                self._is_connected = True
                self._send(ConnAck(), *self._stored)
                self._stored = []
            case Publish(is_request=True):
                assert packet.packet_id is not None
                known = self.under_way.get(packet.packet_id)
                assert known is None or known.payload == packet.payload, "an id is used for two requests"
                self.under_way[packet.packet_id] = packet
            case ReqAck(state=RequestState.CANCELED):
                known = self.under_way.pop(packet.packet_id, None)
                state = RequestState.UNKNOWN if known is None else RequestState.CANCELED
                self._send(ReqAck(packet.packet_id, state))
            case PingReq():
                self._send(PingResp())
            case _:
                raise AssertionError(packet)

    def _send(self, *packets: Packet) -> None:
        self.output += b"".join(map(encode, packets))


class History:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        bulk: BulkMode = self.chance.choice(["adaptive", "fixed", "off"])
        self.core = TbusCore(TbusSettings("c", bulk=bulk, last_id=self.chance.choice([0, 0xFFF0])))
        self.broker = SmallBroker(self.chance)
        self.asked: dict[int, bytes] = {}
        self.canceled: set[int] = set()
        self.ends: dict[int, bytes | None] = {}
        self.now = 0.0
        self._to_broker = b""

    def step(self) -> None:
        actions = [self.ask, self.cancel, self.broker.answer_one, self.move_bytes, self.break_down]
        self.chance.choices(actions, [6, 1, 5, 12, 1])[0]()
        self.now += self.chance.choice([0.001, 0.05])

    def ask(self) -> None:
        payload = b"%d" % len(self.asked)
        token = self.core.request(
            Message("t", payload, priority=self.chance.random() < 0.3), TIMEOUT_S, True, now=self.now
        )
        self.asked[token] = payload

    def cancel(self) -> None:
        open_ones = self.asked.keys() - self.ends.keys() - self.canceled
        if open_ones:
            token = self.chance.choice(sorted(open_ones))
            self.canceled.add(token)
            self.core.abandon(token, now=self.now)

    def move_bytes(self, everything: bool = False) -> None:
        if self.core.state is State.IDLE:
            self.core.connect(now=self.now)
        self.take(self.core.tick(now=self.now))
        self._to_broker += self.core.take_output(now=self.now)
        size = len(self._to_broker) if everything else self.chance.randint(0, len(self._to_broker))
        data, self._to_broker = self._to_broker[:size], self._to_broker[size:]
        self.broker.receive(data)
        size = len(self.broker.output) if everything else self.chance.randint(0, len(self.broker.output))
        data, self.broker.output = self.broker.output[:size], self.broker.output[size:]
        self.take(self.core.receive(data, now=self.now))

    def take(self, events: list[object]) -> None:  # type: ignore[type-arg]
        for event in events:
            match event:
                case Completed(token, Message(payload=payload)):
                    self.end(token, payload)
                case Failed(token, RequestTimeout()):
                    self.end(token, None)
                case Failed():
                    raise AssertionError(event)

    def end(self, token: int, payload: bytes | None) -> None:
        assert token not in self.ends, "it ended twice"
        assert token not in self.canceled, "nobody waits for it"
        self.ends[token] = payload

    def break_down(self) -> None:
        """What is under way is lost, in both directions."""
        self._to_broker = b""
        self.broker.lose()
        self.core.connection_lost()

    def heal(self) -> None:
        for _ in range(2000):
            self.move_bytes(everything=True)
            self.broker.answer_one()
            self.now += 0.05
            if self.asked.keys() == self.ends.keys() | self.canceled:
                return
        raise AssertionError("the network healed, but not all requests come to their end")


@pytest.mark.parametrize("seed", range(60))
def test_every_request_ends_once_and_as_its_own(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.heal()
    for token, payload in history.ends.items():
        # An answer that was on its way when the connection broke is asked for again.
        assert payload in (history.asked[token], None), (seed, token)
    answered = sum(payload is not None for payload in history.ends.values())
    assert answered > len(history.ends) * 0.9, (seed, answered, len(history.ends))
    history.move_bytes(everything=True)
    history.move_bytes(everything=True)
    # Nothing is left behind: every id is free again.
    assert list(history.core._requests) == [], seed
