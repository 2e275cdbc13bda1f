"""Whatever happens to what waits and what is under way, the budget's figure is that of a recount (OP-02).

Small limits, so that queues overflow and victims are chosen; some sessions are kept on disk, some are not.
"""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import V5, V311, Properties
from tests.examples import examples
from tests.session.harness import Peer, answers, check_accounts
from tests.store.lasting import LastingWorld

LIMITS = Limits(
    queued_messages_per_session=12,
    queued_bytes_per_session=8_000,
    inflight_per_session=6,
    inflight_bytes_per_session=4_000,
)
CLIENTS = {"old": V311, "new": V5, "narrow": V5, "brief": V5}
"""All but the last have a session that outlives their connection."""


class HoldingsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="polybus-holdings-"))
        self.peers: dict[str, Peer] = {}

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.world.file.close()
            shutil.rmtree(self.folder)

    @initialize(drop_oldest=st.booleans(), queue_qos0=st.booleans())
    def begin(self, drop_oldest: bool, queue_qos0: bool) -> None:
        self.world = LastingWorld(self.folder, LIMITS, drop_oldest=drop_oldest, queue_qos0=queue_qos0)
        for name in CLIENTS:
            self.come(name, clean_start=True)

    names = st.sampled_from(sorted(CLIENTS))

    @rule(name=names, clean_start=st.booleans())
    def come(self, name: str, clean_start: bool) -> None:
        version = CLIENTS[name]
        keeps = name != "brief" and not (clean_start and version == V311)
        fields = {"receive_maximum": 2} if name == "narrow" else {}
        self.peers[name] = self.world.connect(name, version, clean_start=clean_start, keeps=keeps, **fields)
        self.peers[name].subscribe("t", qos=1 if name == "old" else 2)
        self.peers[name].subscribe("$share/g/s", qos=1)

    @rule(name=names)
    def drop(self, name: str) -> None:
        if name in self.peers:
            self.peers.pop(name).drop()

    @rule(name=names, count=st.integers(1, 20))
    def answer(self, name: str, count: int) -> None:
        if name in self.peers:
            packets = self.peers[name].packets()
            self.peers[name].inbox = packets[count:]
            self.peers[name].send(*answers(packets[:count]))

    @rule(
        topic=st.sampled_from(["t", "t", "s"]),
        qos=st.sampled_from([0, 1, 1, 2]),
        sizes=st.lists(st.sampled_from([3, 3, 3, 900]), min_size=1, max_size=10),
        says=st.sampled_from([None, None, "content", "priority"]),
    )
    def publish(self, topic: str, qos: int, sizes: list[int], says: str | None) -> None:
        fields = {}
        if says == "content":
            fields["properties"] = Properties(content_type="text/plain", message_expiry_s=5)
        elif says == "priority":
            fields["properties"] = Properties(user_properties=(("polybus-message", "priority"),))
        publisher = self.world.connect("p", V5)
        publisher.publish(topic, *(b"." * size for size in sizes), qos=qos, **fields)

    @rule(excess_bytes=st.integers(1, 5_000))
    def relieve(self, excess_bytes: int) -> None:
        self.world.broker.dispatcher.relieve(excess_bytes)

    @rule(seconds=st.sampled_from([1, 10]))
    def wait(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule()
    def kill(self) -> None:
        self.peers.clear()
        self.world.flush()
        self.world = self.world.kill()

    @invariant()
    def books_are_right(self) -> None:
        check_accounts(self.world.broker)

    def finish(self) -> None:
        for name in CLIENTS:
            self.come(name, clean_start=True)
        for peer in self.peers.values():
            peer.receive_all()
        assert self.world.broker.dispatcher.holdings.size_bytes == 0


HoldingsMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30)
TestHoldings = HoldingsMachine.TestCase
