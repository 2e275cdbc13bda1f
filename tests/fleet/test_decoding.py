import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.fleet.damage import DAMAGES
from polybus.fleet.decoding import Limits, Reason, Rejected, decode_message
from polybus.fleet.records import KINDS, Position, Record, encode_record

NOW_MS = 1_790_000_000_000
TOPIC = "fleet/t1/position"
GOOD = Position(
    id="a", truck="t1", at=NOW_MS, lat=58.0, lon=13.0, heading_deg=90.0, speed_kmh=80.0, odometer_km=1000.0
)
LIMITS = Limits(max_payload_bytes=1000)
YEAR_MS = 366 * 86_400_000


def changed(**fields):
    return msgspec.json.encode({**msgspec.to_builtins(GOOD), **fields})


def decode(payload, topic=TOPIC):
    return decode_message(topic, payload, NOW_MS, LIMITS)


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_what_is_encoded_is_decoded(encoding):
    assert decode(encode_record(GOOD, encoding)) == GOOD


def test_what_newer_trucks_say_more_is_no_error():
    assert decode(changed(moon="full")) == GOOD


@pytest.mark.parametrize(
    ("payload", "reason", "detail"),
    [
        (b"", Reason.EMPTY, "no bytes"),
        (None, Reason.EMPTY, "no bytes"),
        (b" " * 1001, Reason.HUGE, "1001 bytes, at most 1000"),
        (b"\xff\xfe", Reason.NOT_UTF8, "at byte 0"),
        (b'{"moon":"\xff"}', Reason.NOT_UTF8, "at byte 9"),
        (b"hello", Reason.NOT_JSON, "malformed"),
        (b'{"v":1', Reason.NOT_JSON, "truncated"),
        (b"\x81\xa1v", Reason.NOT_MSGPACK, "truncated"),
        (b"[]", Reason.WRONG_SCHEMA, "Expected `object`"),
        (changed(lat="north"), Reason.WRONG_SCHEMA, "$.lat"),
        (changed(lat=91), Reason.WRONG_SCHEMA, "$.lat"),
        (changed(at="now"), Reason.WRONG_SCHEMA, "$.at"),
        (changed(v=2), Reason.UNKNOWN_VERSION, "version 2; 1 is known"),
        (b'{"v":2}', Reason.UNKNOWN_VERSION, "version 2; 1 is known"),
        (changed(truck="t2"), Reason.WRONG_TRUCK, "'t2'"),
        (changed(at=NOW_MS + YEAR_MS + 1000), Reason.CLOCK_OFF, "366 days ahead"),
        (changed(at=0), Reason.CLOCK_OFF, "behind"),
        (changed(at=2**63 - 1), Reason.CLOCK_OFF, "ahead"),
        (changed().replace(b'"at":', b'"at":' + b"9" * 400), Reason.CLOCK_OFF, "… days ahead"),
        (b'{"x":' + b"[" * 450 + b"]" * 450 + b"}", Reason.WRONG_SCHEMA, "missing required field"),
        (b'{"v":' + b"9" * 900 + b"}", Reason.UNKNOWN_VERSION, "9; 1 is known"),
    ],
)
def test_what_cannot_be_taken_says_why(payload, reason, detail):
    rejected = decode(payload)
    assert isinstance(rejected, Rejected)
    assert rejected.reason == reason
    assert detail in rejected.detail


@pytest.mark.parametrize(
    "topic", ["fleet/t1/weather", "fleet/t1", "fleet//position", "other/t1/position", "fleet/a/b/c"]
)
def test_other_topics_are_of_no_type(topic):
    assert decode(encode_record(GOOD), topic).reason == Reason.UNKNOWN_TYPE


def test_every_damage_of_the_simulator_is_found():
    reasons = {
        decode_message(*damage(TOPIC, encode_record(GOOD), GOOD), NOW_MS, Limits()).reason
        for _, damage in DAMAGES
    }
    assert len(reasons) == len(DAMAGES)


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=200))
def test_any_bytes_give_a_record_or_a_reason(kind, payload):
    assert isinstance(decode_message(f"fleet/t1/{kind}", payload, NOW_MS, LIMITS), (Record, Rejected))


@pytest.mark.parametrize("payload", [b'{"x":' + b"[" * 50_000, b"\x81\xa1x" + b"\x91" * 50_000])
def test_what_is_nested_too_deep_is_set_aside(payload):
    rejected = decode_message(TOPIC, payload, NOW_MS, Limits())
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, "too deep" in rejected.detail) == (Reason.WRONG_SCHEMA, True)


@pytest.mark.parametrize("field", ["driven_s", "rested_s"])
def test_numbers_that_no_column_holds_are_set_aside(field):
    record = {
        "v": 1,
        "id": "a",
        "truck": "t1",
        "at": NOW_MS,
        "driver": "d",
        "driven_s": 1,
        "rested_s": 1,
        "data": "",
    }
    rejected = decode(msgspec.json.encode({**record, field: 2**63}), "fleet/t1/tachograph")
    assert isinstance(rejected, Rejected)
    assert f"$.{field}" in rejected.detail
