"""Conversations as tables: frames in time, retransmissions, gaps and the books of each direction (PL-04)."""

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from polybus.pipeline.transforms.frames_items import read_conversation
from polybus.pipeline.transforms.packets_fragments import join_fragments
from polybus.wire.mqtt import codec as mqtt
from polybus.wire.mqtt import packets as m
from polybus.wire.tbus import codec as tbus
from polybus.wire.tbus import packets as t
from tests.pipeline.pcap.captures import START_NS, Packet, Talk, ethernet, ipv4, pcap, table, udp
from tests.pipeline.pcap.test_frames import sn

Row = dict[str, Any]


def read(packets: list[Packet], ports: dict[int, str] | None = None, snap: int | None = None) -> list[Row]:
    if snap is not None:
        packets = [Packet(p.data[:snap], p.time_ns, len(p.data)) for p in packets]
    found = table(pcap(packets, exponent=9))
    return read_conversation(found, ports).to_pylist()


def of(rows: list[Row], kind: str, direction: str | None = None) -> list[Row]:
    return [row for row in rows if row["kind"] == kind and direction in (None, row["direction"])]


def check_books(rows: list[Row]) -> None:
    """Payload bytes sent = frames + rejected + sent again, for each direction of each connection."""
    for stream in of(rows, "stream"):
        same = [
            r for r in rows if (r["connection"], r["direction"]) == (stream["connection"], stream["direction"])
        ]
        fates = sum(r["frame_bytes"] for r in same if r["kind"] in ("frame", "rejected"))
        assert stream["sent_bytes"] == fates + stream["duplicate_bytes"]
        assert stream["missing_bytes"] == sum(r["frame_bytes"] for r in same if r["kind"] == "gap")


def publish(number: int, size: int = 30) -> bytes:
    return mqtt.encode(m.Publish("a/b", b"p" * size, qos=1, packet_id=number), m.V311)


CONNECT = mqtt.encode(m.Connect("me", m.V311), m.V311)
CONNACK = mqtt.encode(m.ConnAck(), m.V311)


def mqtt_talk(**options: int) -> Talk:
    talk = Talk(**options)
    talk.open()
    talk.add(True, CONNECT)
    talk.add(False, CONNACK)
    return talk


def test_a_clean_conversation() -> None:
    talk = mqtt_talk(port=12345)
    for number in range(1, 4):
        talk.add(True, publish(number))
        talk.add(False, mqtt.encode(m.PubAck(number), m.V311))
    talk.close()
    rows = read(talk.packets)
    check_books(rows)
    assert {row["protocol"] for row in rows} == {"mqtt"}
    assert {row["server"] for row in rows} == {"10.0.0.2:12345"}
    frames = of(rows, "frame")
    assert [f["type"] for f in frames] == ["CONNECT", "CONNACK"] + ["PUBLISH", "PUBACK"] * 3
    assert [f["topic"] for f in frames[2:]] == ["a/b"] * 6
    assert frames[2]["packet"] == frames[2]["last_packet"] == 6
    assert frames[2]["time"] == frames[2]["completed"]
    assert [s["ended"] for s in of(rows, "stream")] == ["closed", "closed"]
    assert not of(rows, "rejected")
    assert not of(rows, "gap")


def test_a_frame_over_several_packets_that_come_in_disorder() -> None:
    talk = mqtt_talk()
    data = publish(1, 3000)
    at = talk.place(True)
    talk.add(True, data[:1000])
    talk.add(True, data[2000:], seq=at + 2000)
    talk.add(True, data[1000:2000], seq=at + 1000)
    talk.add(True, data[500:1500], seq=at + 500)
    rows = read(talk.packets)
    check_books(rows)
    (frame,) = [f for f in of(rows, "frame") if f["type"] == "PUBLISH"]
    assert (frame["packet"], frame["last_packet"], frame["frame_bytes"]) == (6, 8, len(data))
    assert frame["completed"] > frame["time"]
    stream = of(rows, "stream", "to_server")[0]
    assert (stream["retransmissions"], stream["out_of_order"], stream["duplicate_bytes"]) == (1, 1, 1000)


def test_a_lost_packet_is_a_gap_and_costs_one_frame() -> None:
    talk = mqtt_talk()
    for number in range(1, 6):
        talk.add(True, publish(number))
    del talk.packets[7]
    rows = read(talk.packets)
    check_books(rows)
    assert [f["packet_id"] for f in of(rows, "frame") if f["type"] == "PUBLISH"] == [1, 2, 4, 5]
    (gap,) = of(rows, "gap")
    assert (gap["frame_bytes"], gap["reason"]) == (len(publish(3)), "not in the capture")


def test_the_snap_length_keeps_the_books() -> None:
    talk = mqtt_talk()
    for number in range(1, 6):
        talk.add(True, publish(number, 200))
    rows = read(talk.packets, snap=120)
    check_books(rows)
    assert [f["type"] for f in of(rows, "frame")] == ["CONNECT", "CONNACK"]
    assert len(of(rows, "rejected")) == 5
    assert {gap["reason"] for gap in of(rows, "gap")} == {"cut off by the snap length"}


def test_a_capture_that_begins_in_the_middle_is_told_by_its_port_or_by_reading() -> None:
    for port in (1883, 23456):
        talk = mqtt_talk(port=port, sport=50000)
        talk.packets.clear()
        for number in range(1, 6):
            talk.add(True, publish(number))
            talk.add(False, mqtt.encode(m.PubAck(number), m.V311))
        rows = read(talk.packets)
        check_books(rows)
        assert {row["protocol"] for row in rows} == {"mqtt"}
        assert Counter(f["type"] for f in of(rows, "frame")) == {"PUBLISH": 5, "PUBACK": 5}
        assert of(rows, "frame")[0]["direction"] == "to_server"


def test_ports_that_are_used_again_are_two_connections() -> None:
    first, second = mqtt_talk(), mqtt_talk(client_seq=500_000, server_seq=700_000)
    first.add(True, publish(1))
    first.close()
    second.add(True, publish(2))
    rows = read(first.packets + second.packets)
    check_books(rows)
    assert sorted({row["connection"] for row in rows}) == [
        "tcp 10.0.0.1:40000 > 10.0.0.2:1883 #1",
        "tcp 10.0.0.1:40000 > 10.0.0.2:1883 #2",
    ]
    assert [f["packet_id"] for f in of(rows, "frame") if f["type"] == "PUBLISH"] == [1, 2]


def test_what_one_is_told_overrules_what_it_looks_like() -> None:
    talk = mqtt_talk(port=999)
    rows = read(talk.packets, {999: "unknown"})
    check_books(rows)
    assert {(f["protocol"], f["type"]) for f in of(rows, "frame")} == {("unknown", "bytes")}
    rows = read(talk.packets, {999: "amqp"})
    check_books(rows)
    assert not of(rows, "frame")
    assert "frame type 16" in of(rows, "rejected", "to_server")[0]["reason"]


def test_unknown_bytes_are_kept_as_such() -> None:
    talk = Talk(port=80)
    talk.open()
    talk.add(True, b"GET / HTTP/1.1\r\n\r\n")
    talk.add(False, b"HTTP/1.1 204 No Content\r\n\r\n")
    rows = read(talk.packets)
    check_books(rows)
    assert [(f["protocol"], f["frame_bytes"]) for f in of(rows, "frame")] == [("unknown", 18), ("unknown", 27)]


def test_a_malformed_packet_is_rejected_and_the_next_is_read() -> None:
    talk = mqtt_talk()
    talk.add(True, b"\x82\x02\x00\x00" + publish(1))
    rows = read(talk.packets)
    check_books(rows)
    (rejected,) = of(rows, "rejected")
    assert (rejected["frame_bytes"], rejected["packet"]) == (4, 6)
    assert "SUBSCRIBE" in rejected["reason"]
    assert [f["type"] for f in of(rows, "frame")][-1] == "PUBLISH"


def test_data_in_a_reset_and_from_elsewhere_is_rejected() -> None:
    talk = mqtt_talk()
    talk.add(True, publish(1))
    talk.add(True, b"stray", seq=talk.place(True) + (1 << 30) + 99)
    talk.add(True, b"go away", flags=0x04)
    rows = read(talk.packets)
    check_books(rows)
    reasons = [r["reason"] for r in of(rows, "rejected")]
    assert reasons == ["outside the window of the connection", "data in a reset"]
    assert of(rows, "stream", "to_server")[0]["ended"] == "reset"


def test_bulks_count_once() -> None:
    talk = Talk(port=7777)
    talk.open()
    talk.add(True, tbus.encode(t.Connect("me")))
    talk.add(False, tbus.encode(t.ConnAck()))
    talk.add(True, tbus.encode(t.Bulk(b"".join(tbus.encode(t.Publish("x", b"12345")) for _ in range(10)))))
    rows = read(talk.packets)
    check_books(rows)
    frames = of(rows, "frame", "to_server")
    assert Counter(f["type"] for f in frames) == {"CONNECT": 1, "BULK": 1, "PUBLISH": 10}
    assert sum(f["payload_bytes"] for f in frames) == 50


@pytest.mark.parametrize("seed", range(20))
def test_a_terrible_network_keeps_the_books(seed: int) -> None:
    """Packets lost, doubled and swapped: every frame that is read was sent, once, and the books balance."""
    rng = random.Random(seed)
    talk = mqtt_talk(client_seq=(1 << 32) - 2000)
    opening = len(talk.packets)
    data = b"".join(publish(number, rng.choice([5, 40, 400, 3000])) for number in range(1, 60))
    at = talk.place(True)
    while data:
        size = rng.choice([100, 536, 1448])
        talk.add(True, data[:size], seq=at)
        at, data = at + size, data[size:]
    packets = talk.packets[opening:]
    packets = [p for p in packets if rng.random() > 0.05]
    packets += rng.sample(packets, len(packets) // 10)
    for _ in range(len(packets) // 4):
        i = rng.randrange(len(packets) - 1)
        packets[i], packets[i + 1] = packets[i + 1], packets[i]
    rows = read(talk.packets[:opening] + packets)
    check_books(rows)
    found = [f["packet_id"] for f in of(rows, "frame", "to_server") if f["type"] == "PUBLISH"]
    assert len(found) == len(set(found)), f"seed {seed}"
    assert set(found) <= set(range(1, 60))
    assert len(found) > 20, f"seed {seed}: nearly nothing was found again"
    assert {f["type"] for f in of(rows, "frame", "to_server")} == {"CONNECT", "PUBLISH"}


def datagrams(payloads: list[tuple[bool, bytes]], port: int = 9999) -> list[Packet]:
    packets = []
    for index, (to_server, payload) in enumerate(payloads):
        ports = {"sport": 40001, "dport": port} if to_server else {"sport": port, "dport": 40001}
        src, dst = ("10.0.0.1", "10.0.0.2") if to_server else ("10.0.0.2", "10.0.0.1")
        packets.append(
            Packet(ethernet(ipv4(udp(payload, **ports), 17, src=src, dst=dst)), START_NS + index * 1000)
        )
    return packets


def test_datagrams() -> None:
    talk = [
        (True, sn(4, b"\x04\x01\x00\x3cme")),
        (False, sn(5, b"\0")),
        (True, sn(0x0C, b"\x21\0\x01\0\x02data")),
    ]
    talk += [
        (True, sn(0x0C, b"\xa1\0\x01\0\x02data")),
        (False, sn(0x0D, b"\0\x01\0\x02\0")),
        (True, sn(0x16, b"")),
    ]
    talk += [(True, sn(0x16, b""))] * 6 + [(True, b"\x77garbage")]
    rows = read(datagrams(talk))
    check_books(rows)
    assert {row["protocol"] for row in rows} == {"mqtt-sn"}
    frames = of(rows, "frame")
    assert [f["is_repeat"] for f in frames if f["type"] == "PUBLISH"] == [False, True]
    assert [f["topic"] for f in frames if f["type"] == "PUBACK"] == ["#1"]
    assert [r["frame_bytes"] for r in of(rows, "rejected")] == [8]
    assert {row["client"] for row in rows} == {"10.0.0.1:40001"}


def test_text_datagrams() -> None:
    rows = read(datagrams([(True, b"010MQTT|Estate|apartments in dublin"), (False, b"011MQTT|")], 50000))
    check_books(rows)
    assert [(f["protocol"], f["type"], f["frame_bytes"], f["payload_bytes"]) for f in of(rows, "frame")] == [
        ("text-udp", "PUBLISH", 35, 20),
        ("text-udp", "PUBACK", 8, 0),
    ]


def test_datagrams_that_were_cut_off() -> None:
    rows = read(datagrams([(True, sn(0x0C, b"\x21\0\x01\0\x02" + b"d" * 200))]), {9999: "mqtt-sn"}, snap=100)
    check_books(rows)
    assert [r["reason"] for r in of(rows, "rejected")] == ["cut off by the snap length"]


# --- fragments ---


def fragment_rows(parts: list[tuple[int, bytes, bool, float]], ident: int = 7) -> pa.Table:
    """(offset, bytes, more?, seconds after the first) of IP payloads."""
    packets = [
        Packet(
            ethernet(ipv4(data, 17, ident=ident, flags=0b001 if more else 0, offset=offset)),
            START_NS + int(after * 10**9),
        )
        for offset, data, more, after in parts
    ]
    return table(pcap(packets, exponent=9))


WHOLE = udp(bytes(range(256)) * 10, sport=5, dport=6)
PARTS = [(at, WHOLE[at : at + 1000], at + 1000 < len(WHOLE), 0.0) for at in range(0, len(WHOLE), 1000)]


def test_fragments_become_a_datagram_in_any_order() -> None:
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        found = join_fragments(fragment_rows([PARTS[i] for i in order])).to_pylist()
        assert {(row["src_port"], row["dst_port"]) for row in found} == {(5, 6)}
        (owner,) = [row for row in found if row["number"] == row["owner"]]
        assert owner["payload"] == WHOLE[8:]
        assert owner["payload_length"] == len(WHOLE) - 8
        assert all(row["payload"] is None for row in found if row is not owner)


def test_fragments_that_are_missing_are_named() -> None:
    for missing, reason in [
        (0, "byte 1000 follows byte 0"),
        (1, "byte 2000 follows byte 1000"),
        (2, "the last fragment"),
    ]:
        parts = [part for index, part in enumerate(PARTS) if index != missing]
        found = join_fragments(fragment_rows(parts)).to_pylist()
        errors = [row["error"] for row in found if row["error"]]
        assert len(errors) == 1
        assert reason in errors[0]
        assert all(row["payload"] is None for row in found)


def test_an_identification_is_used_again() -> None:
    found = join_fragments(fragment_rows([*PARTS, *PARTS])).to_pylist()
    assert [row["payload"] == WHOLE[8:] for row in found if row["number"] == row["owner"]] == [True, True]
    late = [(at, data, more, 100.0) for at, data, more, _ in PARTS]
    found = join_fragments(fragment_rows([PARTS[0], PARTS[2], *late])).to_pylist()
    owners = [row for row in found if row["number"] == row["owner"]]
    assert [bool(row["error"]) for row in owners] == [True, False]
    assert len(found) == 5
