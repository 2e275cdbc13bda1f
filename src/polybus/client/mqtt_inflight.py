"""QoS 1 and 2 in both directions: what is under way, and what a reconnect does to it.

`Outbox` holds our publishes from `submit` to the last acknowledgement, `Inbox` the broker's from
arrival to the last acknowledgement. Both outlive connections. Nothing is sent twice on one
connection; a new one starts with `resume` [MQTT-4.4.0-1].
"""

from collections import deque
from enum import Enum, auto

import msgspec

from polybus.client.events import Receipt
from polybus.client.mqtt_reasons import is_refusal
from polybus.client.packet_ids import PacketIds
from polybus.errors import PeerError
from polybus.wire.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel, ReasonCode


class Stage(Enum):
    WAITING = auto()  # not sent on this connection
    PUBLISHED = auto()  # PUBLISH sent
    RELEASED = auto()  # QoS 2: PUBREC received, PUBREL sent


class Outgoing(msgspec.Struct):
    """One PUBLISH of ours. `takes_quota` says whether it counts against the receive maximum."""

    token: int
    publish: Publish
    stage: Stage = Stage.WAITING
    takes_quota: bool = False


class Outbox:
    def __init__(self, packet_ids: PacketIds) -> None:
        self._packet_ids = packet_ids
        self._waiting: deque[Outgoing] = deque()
        self._sent: dict[int, Outgoing] = {}  # by packet id, in the order of sending
        self._receive_maximum = 0
        self._quota_used = 0
        self._session_present = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def submit(self, token: int, publish: Publish) -> None:
        self._waiting.append(Outgoing(token, publish))

    def withdraw(self, token: int) -> bool:
        """Take back a publish that was never sent on any connection."""
        for outgoing in self._waiting:
            if outgoing.token == token and not outgoing.publish.packet_id:
                self._waiting.remove(outgoing)
                return True
        return False

    def pause(self) -> None:
        """No connection: everything waits."""
        self._receive_maximum = self._quota_used = 0

    def resume(self, receive_maximum: int, *, session_present: bool) -> tuple[list[PubRel], list[int], int]:
        """A new connection. Returns what to release again, tokens that are complete, and how many
        publishes will be sent again.

        A broker that forgot the session takes publishes as new ones. It had already taken over
        those that it answered with PUBREC.
        """
        self._receive_maximum, self._quota_used = receive_maximum, 0
        self._session_present = session_present
        again = [outgoing for outgoing in self._sent.values() if outgoing.stage is not Stage.RELEASED]
        released = [outgoing for outgoing in self._sent.values() if outgoing.stage is Stage.RELEASED]
        self._sent.clear()
        for outgoing in again:
            outgoing.stage, outgoing.takes_quota = Stage.WAITING, False
        self._waiting.extendleft(reversed(again))
        if not session_present:
            for outgoing in released:
                self._packet_ids.release(outgoing.publish.packet_id)
            return [], [outgoing.token for outgoing in released], len(again)
        for outgoing in released:
            outgoing.takes_quota = False
            self._sent[outgoing.publish.packet_id] = outgoing
        return [PubRel(outgoing.publish.packet_id) for outgoing in released], [], len(again)

    def next_to_send(self) -> Outgoing | None:
        """[MQTT-3.3.4-7] Never more than the receive maximum under way."""
        if not self._waiting or self._quota_used >= self._receive_maximum:
            return None
        outgoing = self._waiting[0]
        publish = outgoing.publish
        if publish.packet_id:
            # [MQTT-3.3.1-1] sent before; a broker without the session takes it as a new one
            outgoing.publish = msgspec.structs.replace(publish, dup=self._session_present)
        elif self._packet_ids.is_exhausted:
            return None
        else:
            outgoing.publish = msgspec.structs.replace(publish, packet_id=self._packet_ids.take())
        self._waiting.popleft()
        outgoing.stage, outgoing.takes_quota = Stage.PUBLISHED, True
        self._quota_used += 1
        self._sent[outgoing.publish.packet_id] = outgoing
        return outgoing

    def acknowledged(self, packet: PubAck | PubRec | PubComp) -> tuple[Outgoing | None, PubRel | None]:
        """Returns the publish that is now at its end, or the PUBREL that is due."""
        outgoing = self._sent.get(packet.packet_id)
        match packet:
            case PubRec() if outgoing is None:
                # Already complete here: release it there too [MQTT-4.3.3-8].
                return None, PubRel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
            case PubAck() | PubComp() if outgoing is None:
                return None, None
        assert outgoing is not None
        expected_qos = 1 if isinstance(packet, PubAck) else 2
        if outgoing.publish.qos != expected_qos or (
            isinstance(packet, PubComp) and outgoing.stage is not Stage.RELEASED
        ):
            raise PeerError(ReasonCode.PROTOCOL_ERROR, f"{type(packet).__name__} does not answer what was sent")
        if isinstance(packet, PubRec) and not is_refusal(packet.reason_code):
            outgoing.stage = Stage.RELEASED
            return None, PubRel(packet.packet_id)
        return self.drop(outgoing), None

    def drop(self, outgoing: Outgoing) -> Outgoing:
        self._sent.pop(outgoing.publish.packet_id, None)
        self._packet_ids.release(outgoing.publish.packet_id)
        self._quota_used -= outgoing.takes_quota
        return outgoing


class Incoming(msgspec.Struct):
    """One PUBLISH of the broker's. `connection` is the one on which it was last seen."""

    qos: int
    serial: int
    connection: int
    is_handled: bool = False


class Inbox:
    """Deduplicates and acknowledges.

    A message is delivered once while the session lasts, also when the broker repeats it on a new
    connection; a repeated one that was handled meanwhile is only acknowledged.
    """

    def __init__(self, receive_maximum: int) -> None:
        self._receive_maximum = receive_maximum
        self._incoming: dict[int, Incoming] = {}
        self._serial = 0
        self._connection = 0

    def pause(self) -> None:
        """No connection: nothing can be answered until the broker sends it again."""
        self._connection += 1

    def resume(self, *, session_present: bool) -> None:
        if not session_present:
            self._incoming.clear()

    def received(self, publish: Publish) -> tuple[Receipt | None, PubAck | PubRec | None]:
        """Returns a receipt if it has to be delivered, and what to answer at once."""
        known = self._incoming.get(publish.packet_id)
        # A broker may use an id again without DUP when it gave up on the first message. For QoS 2
        # only PUBREL ends the id [MQTT-4.3.3-10], so there the id alone decides.
        if known is not None and known.qos == publish.qos and (publish.dup or publish.qos == 2):
            known.connection = self._connection
            return None, self._answer(publish.packet_id, known) if known.is_handled else None
        self._check_receive_maximum()
        self._serial += 1
        self._incoming[publish.packet_id] = Incoming(publish.qos, self._serial, self._connection)
        return Receipt(self._serial, publish.packet_id), None

    def handled(self, receipt: Receipt) -> PubAck | PubRec | None:
        known = self._incoming.get(receipt.packet_id)
        if known is None or known.serial != receipt.serial or known.is_handled:
            return None
        known.is_handled = True
        # Seen on an earlier connection only: the broker sends it again, and is answered then.
        return self._answer(receipt.packet_id, known) if known.connection == self._connection else None

    def released(self, packet_id: int) -> PubComp:
        known = self._incoming.pop(packet_id, None)
        return PubComp(packet_id, 0 if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)

    def _answer(self, packet_id: int, known: Incoming) -> PubAck | PubRec:
        if known.qos == 2:
            return PubRec(packet_id)
        del self._incoming[packet_id]
        return PubAck(packet_id)

    def _check_receive_maximum(self) -> None:
        if len(self._incoming) < self._receive_maximum:
            return
        current = sum(known.connection == self._connection for known in self._incoming.values())
        if current >= self._receive_maximum:
            raise PeerError(
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                f"more than {self._receive_maximum} unacknowledged messages",
                "MQTT-3.3.4-9",
            )
