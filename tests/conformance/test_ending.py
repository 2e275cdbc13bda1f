"""How connections end: DISCONNECT (section 3.14), errors (4.13, 4.8), and flags of the fixed header (2.1.3)."""

from collections.abc import Callable

import pytest

from polybus.broker.access import Access
from polybus.broker.limits import Limits
from polybus.wire.mqtt.packets import (
    V5,
    ConnAck,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    UnsubAck,
)

from . import raw
from .harness import Bus, Client
from .rules import Row, rules, table
from .stand_ins import Broken

DISCONNECT_CODES = {
    *(0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96),
    *(0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2),
}


# -- DISCONNECT ------------------------------------------------------------------------------------


def _take_over(bus: Bus, client: Client) -> None:
    bus.connect("c")


def _be_silent(bus: Bus, client: Client) -> None:
    bus.advance(16)


def _break_the_protocol(bus: Bus, client: Client) -> None:
    client.send(bus.connect_packet("c"))


def _be_malformed(bus: Bus, client: Client) -> None:
    client.send_raw("36ff")
    client.send_raw(b"\xff" * 255)


def _shut_down(bus: Bus, client: Client) -> None:
    bus.server.stop()


def _overrun(bus: Bus, client: Client) -> None:
    client.send(*(Publish("t", b"", 2, packet_id=number) for number in range(1, 9)))
    while client.peek() is PubRec:
        client.expect(PubRec)


CAUSES: list[tuple[Callable[[Bus, Client], None], int]] = [
    (_take_over, ReasonCode.SESSION_TAKEN_OVER),
    (_be_silent, ReasonCode.KEEP_ALIVE_TIMEOUT),
    (_break_the_protocol, ReasonCode.PROTOCOL_ERROR),
    (_be_malformed, ReasonCode.MALFORMED_PACKET),
    (_shut_down, ReasonCode.SERVER_SHUTTING_DOWN),
    (_overrun, ReasonCode.RECEIVE_MAXIMUM_EXCEEDED),
]


@table(
    "case",
    [
        Row(
            cause.__name__.strip("_"),
            (cause, code),
            v5="MQTT-3.14.2-1 MQTT-3.14.2-2 MQTT-3.14.4-1 MQTT-3.14.4-2 MQTT-4.13.2-1",
        )
        for cause, code in CAUSES
    ],
)
def test_the_servers_disconnect(bus: Bus, case: tuple[Callable[[Bus, Client], None], int]) -> None:
    """The last packet, with a reason of its own, without a session expiry; then the close."""
    cause, code = case
    bus.configure(limits=Limits(receive_maximum=5))
    client = bus.connect("c", keep_alive_s=10, session_expiry_s=100)
    cause(bus, client)
    said = client.expect(Disconnect, reason_code=code)
    assert code in DISCONNECT_CODES
    assert said.properties.session_expiry_s is None
    client.expect_closed_silently()


@rules(v311="MQTT-3.1.4-2", v5="MQTT-3.14.2-1 MQTT-3.14.4-2", wire=True)
def test_a_server_that_stops_says_so_and_closes(bus: Bus) -> None:
    client = bus.connect("c")
    bus.server.stop()
    client.expect_closed(ReasonCode.SERVER_SHUTTING_DOWN)


@rules(v5="MQTT-3.14.4-1")
def test_nothing_follows_the_servers_disconnect(bus: Bus) -> None:
    """Messages for the client that arrive in the same moment come before it or not at all."""
    client = bus.connect("c")
    client.subscribe("t", qos=1)
    bad = raw.publish(V5, "t", flags=0x06, packet_id=1)
    client.send_raw(raw.publish(V5, "t", b"1") + bad + raw.publish(V5, "t", b"2"))
    bus.connect("p").publish("t", b"3", qos=1)
    packets: list[Packet] = []
    while client.peek() is not None:
        packets.append(client.expect(client.peek() or Disconnect))
    assert isinstance(packets[-1], Disconnect)
    assert [p.payload for p in packets[:-1] if isinstance(p, Publish)] in ([], [b"1"])
    client.expect_closed_silently()


@rules(v311="MQTT-3.14.4-3", v5="MQTT-3.14.4-3 MQTT-3.14.4-1")
def test_nothing_after_the_clients_disconnect_is_processed(bus: Bus) -> None:
    watcher = bus.connect("w")
    watcher.subscribe("#")
    client = bus.connect("c")
    client.send(Disconnect(), Publish("t", b"x"), PingReq())
    client.expect_closed_silently()
    watcher.expect_nothing()


@rules(v5="MQTT-3.14.2-1")
def test_a_reason_code_that_is_none_of_disconnects_is_an_error(bus: Bus) -> None:
    client = bus.connect("c")
    client.send_raw("e00101")
    client.expect_closed(ReasonCode.PROTOCOL_ERROR, ReasonCode.MALFORMED_PACKET)


@rules(v5="MQTT-4.13.1-1")
def test_a_session_that_was_not_to_be_kept_cannot_be_kept_at_the_end(bus: Bus) -> None:
    client = bus.connect("c")
    client.send(Disconnect(0, Properties(session_expiry_s=10)))
    client.expect_closed(ReasonCode.PROTOCOL_ERROR)


# -- flags of the fixed header ---------------------------------------------------------------------

FLAGGED: list[tuple[str, int, bytes, str, str]] = [
    ("puback", 0x40, b"\x00\x01", "", ""),
    ("pubrec", 0x50, b"\x00\x01", "", ""),
    ("pubrel", 0x60, b"\x00\x01", "MQTT-3.6.1-1", "MQTT-3.6.1-1"),
    ("pubcomp", 0x70, b"\x00\x01", "", ""),
    ("pingreq", 0xC0, b"", "", ""),
    ("disconnect", 0xE0, b"", "MQTT-3.14.1-1", "MQTT-3.14.1-1"),
]


@table(
    "data",
    [
        Row(
            f"{name}-{flags:04b}",
            raw.frame(first_byte | flags, body),
            v311=f"MQTT-2.2.2-1 MQTT-2.2.2-2 {v311}",
            v5=f"MQTT-2.1.3-1 {v5}",
        )
        for name, first_byte, body, v311, v5 in FLAGGED
        for flags in (0b0000, 0b0001, 0b0010, 0b0100, 0b1000, 0b1111)
        if flags != (0b0010 if name == "pubrel" else 0)
    ],
)
def test_reserved_flags_that_are_not_as_listed_end_the_connection(bus: Bus, data: bytes) -> None:
    client = bus.connect("c")
    client.send_raw(data)
    client.expect_closed(ReasonCode.MALFORMED_PACKET)


@rules(v311="MQTT-2.2.2-1", v5="MQTT-2.1.3-1")
def test_the_servers_reserved_flags_are_as_listed(bus: Bus) -> None:
    client = bus.connect("c")
    first_bytes = [client.last_frame[0]]

    def note(kind: type[Packet]) -> Packet:
        packet = client.take(kind)
        first_bytes.append(client.last_frame[0])
        return packet

    client.send_raw(raw.subscribe(bus.version, ("t", 2)))
    note(SubAck)
    client.send(Publish("elsewhere", b"x", 1, packet_id=1))
    note(PubAck)
    bus.connect("p").publish("t", b"x", qos=2)
    got = client.take(Publish)
    client.send(PubRec(got.packet_id))
    note(PubRel)
    client.send_raw(raw.unsubscribe(bus.version, "t"))
    note(UnsubAck)
    assert first_bytes == [0x20, 0x90, 0x40, 0x62, 0xB0]


# -- lengths ---------------------------------------------------------------------------------------


@table(
    "data",
    [
        Row("remaining-length-of-5-bytes", "c08080808000", v311="MQTT-4.8.0-1", v5="MQTT-4.13.1-1"),
        Row("pingreq-with-a-body", "c00100", v311="MQTT-4.8.0-1", v5="MQTT-4.13.1-1"),
        Row("puback-without-an-id", "4000", v311="MQTT-4.8.0-1", v5="MQTT-4.13.1-1"),
        Row("puback-with-half-an-id", "400100", v311="MQTT-4.8.0-1", v5="MQTT-4.13.1-1"),
        Row("puback-with-more", "4003000100", v311="MQTT-4.8.0-1"),
        Row("disconnect-with-a-body", "e00100", v311="MQTT-4.8.0-1"),
        Row("remaining-length-not-minimal", "c08000", v5="MQTT-1.5.5-1"),
        Row("puback-reason-unknown", "4003000101", v5="MQTT-3.4.2-1"),
        Row("pubrec-reason-unknown", "5003000101", v5="MQTT-3.5.2-1"),
        Row("pubrel-reason-unknown", "6203000101", v5="MQTT-3.6.2-1"),
        Row("pubcomp-reason-unknown", "7003000101", v5="MQTT-3.7.2-1"),
    ],
)
def test_packets_of_the_wrong_length_or_code_end_the_connection(bus: Bus, data: str) -> None:
    client = bus.connect("c")
    client.send_raw(data)
    client.expect_closed(ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)


@pytest.mark.parametrize("size", [127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
@rules(v5="MQTT-1.5.5-1")
def test_the_server_writes_lengths_in_the_fewest_bytes(bus: Bus, size: int) -> None:
    client = bus.connect("s")
    client.subscribe("t", qos=1)
    publisher = bus.connect("p")
    for qos in (0, 1):
        publisher.publish("t", b"x" * (size - 4 - 2 * qos), qos=qos)
        client.expect(Publish, qos=qos)
        assert client.last_frame[1:].startswith(raw.varint(size))


# -- errors that are nobody's fault ----------------------------------------------------------------


@rules(v311="MQTT-4.8.0-2 MQTT-3.2.2-4 MQTT-3.2.2-5", v5="MQTT-4.13.2-1 MQTT-3.2.2-7 MQTT-3.2.2-8")
def test_a_server_that_is_full_refuses(bus: Bus) -> None:
    bus.configure(limits=Limits(connections=1))
    first = bus.connect("first")
    second = bus.open()
    second.send(bus.connect_packet("second"), Publish("t", b"x"))
    full = (ReasonCode.QUOTA_EXCEEDED, ReasonCode.SERVER_BUSY, ReasonCode.SERVER_UNAVAILABLE)
    assert second.expect(ConnAck).reason_code in (full if bus.version >= V5 else (3,))
    second.expect_closed_silently()
    first.expect_nothing()


@rules(v311="MQTT-4.8.0-2", v5="MQTT-4.13.1-1")
def test_an_error_of_ours_ends_the_connection_it_met_and_no_other(bus: Bus) -> None:
    bus.configure(access=Access(authorizer=Broken()))
    other = bus.connect("other")
    client = bus.connect("c")
    client.send(Publish("t", b"x", 1, packet_id=1))
    client.expect_closed(
        ReasonCode.UNSPECIFIED_ERROR, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, ReasonCode.SERVER_BUSY
    )
    other.expect_nothing()


# -- what a server announces -----------------------------------------------------------------------


@rules(v5="MQTT-3.2.2-9")
def test_a_server_that_announces_no_limits_has_none(bus: Bus) -> None:
    client = bus.connect("c")
    said = client.connack.properties
    assert (said.maximum_qos, said.retain_available) == (None, None)
    assert said.wildcard_subscription_available is None
    assert said.subscription_identifiers_available is None
    assert said.shared_subscription_available is None
    assert client.subscribe("a/+", "#", qos=2, identifier=1) == (2, 2)
    assert client.subscribe("$share/g/t", qos=2) == (2,)
    client.publish("t", b"x", qos=2, retain=True)
