"""How a link between two brokers begins (TB-15): one calls, the other lets it in or says why not.

    CallingLink ──CONNECT──▶ TbusLink ──Gate──▶ CalledLink ──CONNACK──▶ CallingLink

From there on both are a `NeighborLink`.
"""

from collections.abc import Callable
from hmac import compare_digest
from typing import Final

from polybus.broker import events
from polybus.broker.broker import Broker
from polybus.broker.events import emit
from polybus.broker.links import Port
from polybus.errors import PeerError
from polybus.mesh.address import broker_id, is_local, parse_address
from polybus.mesh.membership import No
from polybus.mesh.mesh import Mesh
from polybus.session.intake import State
from polybus.session.tbus.bulking import MAX_BULK_BYTES
from polybus.session.tbus.link import NO_NEIGHBORS, TbusLink
from polybus.session.tbus.neighbor import RULE, NeighborLink, Probe
from polybus.session.tbus.options import TbusOptions
from polybus.session.tbus.reader import wrong
from polybus.wire.tbus.codec import encode
from polybus.wire.tbus.crossing import BrokerConnAck, BrokerConnect, encode_between
from polybus.wire.tbus.packets import (
    Connect,
    ConnectReason,
    Disconnect,
    DisconnectReason,
    MessageType,
    Packet,
)

REFUSALS: Final = {
    No.ITSELF: (ConnectReason.UNSPECIFIED, "this is the id of this very broker; is it calling itself?"),
    No.LINKED: (ConnectReason.CLIENT_ID_IN_USE, "there is a link with this broker already"),
    No.CALLED: (ConnectReason.CLIENT_ID_IN_USE, "this broker is calling you just now, and its call is taken"),
    No.FULL: (ConnectReason.UNSPECIFIED, "this broker takes no more neighbours"),
}


class CalledLink(NeighborLink):
    """The other broker made the call; its CONNECT was read by a `TbusLink`."""

    __slots__ = ()

    calls = False

    def welcome(self, connect: BrokerConnect, neighbor: str) -> None:
        session = self._begin(neighbor, connect.packet_limit, connect.keep_alive_s)
        mesh = self._mesh
        mesh.members.linked(neighbor, self.broker.now)
        others = ";".join(mesh.members.others(besides=neighbor))
        self.is_greeted = True
        self.reply(
            encode_between(
                BrokerConnAck(
                    server_reference=others or None,
                    broker_id=mesh.options.own_id,
                    packet_limit=self.agreed.packet_size_bytes,
                )
            )
        )
        self.flush()  # by itself
        self._introduce(session)


class CallingLink(NeighborLink):
    """This broker made the call."""

    __slots__ = ("_address", "_on_refused")

    calls = True
    opening = range(MessageType.CONNACK << 4, (MessageType.CONNACK << 4) + 16)

    def __init__(
        self,
        broker: Broker,
        port: Port,
        options: TbusOptions,
        mesh: Mesh,
        address: str,
        on_refused: Callable[[str], None],
        *,
        peer: str = "",
        now: float,
    ) -> None:
        """`on_refused` is told why there will be no link; not called once there is one."""
        super().__init__(broker, port, options, mesh, peer=peer, now=now)
        self._address = address
        self._on_refused: Callable[[str], None] | None = on_refused
        said = mesh.options
        call = BrokerConnect(
            said.own_id,
            said.keep_alive_s,
            is_broker=True,
            token=said.token or None,
            bulk_limit=MAX_BULK_BYTES,
            packet_limit=broker.limits.packet_size_bytes,
        )
        broker.reply(self, encode_between(call))
        self.flush()

    def on_timer(self, now: float) -> None:
        if self.state == State.NEW:
            self.close("no CONNACK in time", publish_will=False)
        else:
            super().on_timer(now)

    def fail(self, error: PeerError) -> None:
        """Without a link yet it is no event of its own: whoever called says what came of it, once."""
        if self.state == State.NEW:
            self.refuse(error)
            self.close(error.text, publish_will=False)
        else:
            super().fail(error)

    def not_opened(self) -> PeerError:
        return wrong("the answer to CONNECT is no CONNACK; is that a TBus broker?", RULE)

    def greet(self, packet: Packet) -> None:
        if not isinstance(packet, BrokerConnAck):
            raise self.not_opened()
        mesh, now = self._mesh, self.broker.now
        neighbor = packet.broker_id or self._address
        if packet.reason is not ConnectReason.SUCCESS:
            why = f"it says {packet.reason.value}, {packet.reason_string or 'without a reason'}"
            raise PeerError(DisconnectReason.UNSPECIFIED, why, RULE)
        if neighbor == mesh.options.own_id:
            mesh.members.is_itself(self._address)
            raise PeerError(DisconnectReason.UNSPECIFIED, "that is this broker itself", RULE)
        if parse_address(neighbor) is None:
            raise PeerError(DisconnectReason.UNSPECIFIED, f"its id {neighbor[:80]!r} is no ip:port", RULE)
        if not mesh.members.linked(neighbor, now, self._address):
            raise PeerError(DisconnectReason.NORMAL, "there is a link with it already", RULE)
        self._on_refused = None
        bad = mesh.members.learn(packet.server_reference or "", now)
        if bad:
            named = ", ".join(repr(place[:40]) for place in bad[:5])
            emit(
                events.NEIGHBOR_REFUSED, neighbor=neighbor, reason=f"it names brokers that are no use: {named}"
            )
        session = self._begin(neighbor, packet.packet_limit, 0)
        self._introduce(session)
        self._ping_timer = self.broker.timers.schedule(now + mesh.options.keep_alive_s / 2, Probe(self))

    def refuse(self, error: PeerError) -> None:
        """We called: there is nobody to refuse, only to leave."""
        self.say_last(encode(Disconnect(DisconnectReason.UNSPECIFIED, error.text)))

    def close(self, why: str, *, publish_will: bool) -> None:
        on_refused, self._on_refused = self._on_refused, None
        super().close(why, publish_will=publish_will)
        if on_refused is not None:
            on_refused(why)


class Gate:
    """Lets in brokers that call, if they may."""

    def __init__(
        self, broker: Broker, mesh: Mesh, options: TbusOptions, adopt: Callable[[NeighborLink], None]
    ) -> None:
        """`adopt` is told which link has the connection from now on."""
        self._broker = broker
        self._mesh = mesh
        self._options = options
        self._adopt = adopt

    def enter(self, link: TbusLink, connect: Connect) -> None:
        assert isinstance(connect, BrokerConnect)
        try:
            neighbor = self._judge(connect, link.peer)
        except PeerError as error:
            if error.reason_code == ConnectReason.CLIENT_ID_IN_USE:  # two calls at once are nothing to tell
                link.refuse(error)
                link.close(error.text, publish_will=False)
                return
            name = connect.client_id[:80]
            emit(events.NEIGHBOR_REFUSED, neighbor=name, peer=link.peer, reason=error.text)
            raise
        port = link.leave_to()
        called = CalledLink(self._broker, port, self._options, self._mesh, peer=link.peer, now=self._broker.now)
        self._adopt(called)
        called.welcome(connect, neighbor)

    def _judge(self, connect: BrokerConnect, peer: str) -> str:
        """The id of a broker that may come in. Raises PeerError."""
        mesh, access = self._mesh, self._broker.access
        if not mesh.options.is_open:
            raise PeerError(ConnectReason.UNSPECIFIED, NO_NEIGHBORS, RULE)
        token = mesh.options.token
        if token:
            if not compare_digest((connect.token or "").encode(), token.encode()):
                raise PeerError(ConnectReason.NOT_AUTHORIZED, "the mesh token is wrong or missing", RULE)
        elif not is_local(peer) or access.authenticator is not None or access.authorizer is not None:
            why = "neighbours need a token here: set mesh.token, the same at each broker"
            raise PeerError(ConnectReason.NOT_AUTHORIZED, why, RULE)
        parsed = parse_address(connect.client_id)
        if parsed is None:
            raise PeerError(ConnectReason.MALFORMED, "the id of a broker is ip:port", RULE)
        neighbor = broker_id(*parsed)
        no = mesh.members.judge(neighbor)
        if no is not None:
            if no is No.LINKED and (old := mesh.link_of(neighbor)) is not None:
                old.probe()  # it may be the one that does not know yet
            raise PeerError(*REFUSALS[no], RULE)
        return neighbor
