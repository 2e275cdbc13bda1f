"""What is written down: every field comes back, and what an earlier version wrote is still read.

The bytes here are those of files that exist. Who has to change them needs a new schema version.
"""

from collections.abc import Sequence

import msgspec
import pytest

from polybus.broker import records
from polybus.broker.lifecycle import RequestState
from polybus.broker.message import NO_MESSAGE_PROPERTIES, Message, MessageProperties, Run
from polybus.broker.request import Request
from polybus.broker.sessions import Session, Will
from polybus.session.mqtt.encoding import MQTT_5, MQTT_311

ENCODINGS = {encoding.name: encoding for encoding in (MQTT_311, MQTT_5)}
OFFSET = 1000.0
SAID = MessageProperties(True, "text", "reply/to", b"\x01", (("a", "1"), ("a", "2")))
MESSAGE = Message("t", b"p", 2, True, True, 5.0, SAID, "me", True, stamp=9)
PLAIN = Message("t", b"p")


def session(*, is_connected: bool = False, will: Will | None = None) -> records.SessionRecord:
    return records.SessionRecord(
        "s", "user", "owner", 60.0, is_connected, None if is_connected else 1070.0, None, records_will(will)
    )


def records_will(will: Will | None) -> records.WillRecord | None:
    if will is None:
        return None
    return records.WillRecord(records.message_record(will.message, OFFSET), will.delay_s, will.expiry_s)


@pytest.mark.parametrize("message", [MESSAGE, PLAIN], ids=["everything", "nothing"])
def test_a_message(message: Message) -> None:
    data = records.piece_record(message, OFFSET)
    assert records.unpack_piece(data) == records.unpack_message(data) == records.message_record(message, OFFSET)
    again = records.message_of(records.unpack_message(data), OFFSET)
    assert again == message
    assert (again.properties is NO_MESSAGE_PROPERTIES) == (message is PLAIN)


def test_times_are_on_the_wall_clock() -> None:
    """The next process has a clock of its own."""
    record = records.message_record(MESSAGE, OFFSET)
    assert record.expires_at == 1005.0
    assert records.message_of(record, 1003.0).expires_at == 2.0


@pytest.mark.parametrize("ids_at", [(), (5, 17, 40), range(5, 40, 12)], ids=["none", "some", "a range"])
@pytest.mark.parametrize("encoding", [MQTT_311, MQTT_5], ids=["3.1.1", "5"])
def test_a_run(ids_at: Sequence[int], encoding: object) -> None:
    run = Run(b"wire", 3, encoding, "me", 1, ids_at)  # type: ignore[arg-type]
    record = records.unpack_piece(records.piece_record(run, OFFSET))
    assert isinstance(record, records.RunRecord)
    assert records.run_of(record, ENCODINGS) == run


def test_a_session_that_was_away() -> None:
    kept = Session("s")
    kept.user, kept.owner, kept.expiry_s, kept.ends_at, kept.will_at = "user", "owner", 60.0, 70.0, 30.0
    kept.will = Will(MESSAGE, 20.0, 7.0)
    record = records.unpack_session(records.session_record(kept, OFFSET))
    assert (record.is_connected, record.ends_at, record.will_at) == (False, 1070.0, 1030.0)
    again = records.session_of(record, 1010.0, alive_at=5555.0)
    assert (again.client_id, again.user, again.owner, again.expiry_s) == ("s", "user", "owner", 60.0)
    assert (again.ends_at, again.will_at) == (60.0, 20.0)
    assert again.will == Will(records.message_of(record.will.message, 1010.0), 20.0, 7.0)  # type: ignore[union-attr]
    assert again.link is None


def test_a_session_that_was_connected_has_lost_its_connection_when_the_broker_was_last_alive() -> None:
    record = session(is_connected=True, will=Will(PLAIN, 20.0))
    again = records.session_of(record, OFFSET, alive_at=1500.0)
    assert (again.ends_at, again.will_at) == (560.0, 520.0)
    again = records.session_of(session(is_connected=True), OFFSET, alive_at=1500.0)
    assert (again.ends_at, again.will_at, again.will) == (560.0, None, None)


@pytest.mark.parametrize("said", [SAID, NO_MESSAGE_PROPERTIES], ids=["said", "unsaid"])
@pytest.mark.parametrize("kept_until", [None, 80.0])
def test_a_request(said: MessageProperties, kept_until: float | None) -> None:
    request = Request(MESSAGE, "owner", 7, 3, may_wait=False, now=10.0)
    request.deadline, request.state, request.losses = 20.0, RequestState.ANSWER_STORED, 2
    request.answer, request.answer_properties, request.reason = b"answer", said, "why"
    record = records.unpack_request(records.request_record(request, OFFSET, kept_until))
    assert record.kept_until == (None if kept_until is None else 1080.0)
    again = records.request_of(3, record, 1004.0)
    assert (again.message.expires_at, again.created_at, again.deadline) == (1.0, 6.0, 16.0)
    assert again.may_wait, "else it would not have been written down"
    assert again.answer_properties == said
    assert (again.answer_properties is NO_MESSAGE_PROPERTIES) == (said is NO_MESSAGE_PROPERTIES)
    for name in ("owner", "packet_id", "serial", "state", "losses", "answer", "reason"):
        assert getattr(again, name) == getattr(request, name), name


@pytest.mark.parametrize(
    ("data", "plain"),
    [
        (
            records.piece_record(PLAIN, OFFSET),
            ["message", "t", b"p", 0, False, False, None, None, "", False, 0],
        ),
        (
            records.piece_record(Run(b"w", 3, MQTT_5, "me", 1, range(5, 40, 12)), OFFSET),
            ["run", b"w", 3, MQTT_5.name, "me", 1, [5, 40, 12], True],
        ),
        (
            records.pack(session(will=Will(PLAIN, 20.0, 7.0))),
            [
                *("s", "user", "owner", 60.0, False, 1070.0, None),
                [["message", "t", b"p", 0, False, False, None, None, "", False, 0], 20.0, 7.0],
            ],
        ),
        (
            records.request_record(Request(PLAIN, "owner", 7, 3, may_wait=True, now=1.0), OFFSET, None),
            [
                ["message", "t", b"p", 0, False, False, None, None, "", False, 0],
                *("owner", 7, 0, 1001.0, 1001.0, 0, None, None, "", None),
            ],
        ),
    ],
    ids=["message", "run", "session", "request"],
)
def test_what_is_in_the_file(data: bytes, plain: list[object]) -> None:
    assert msgspec.msgpack.decode(data) == plain


def test_a_message_of_before_there_were_stamps() -> None:
    data = msgspec.msgpack.encode(["message", "t", b"p", 0, False, False, None, None, "", False])
    assert records.message_of(records.unpack_message(data), OFFSET) == PLAIN
