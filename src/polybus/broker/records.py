"""What durable state looks like when it is written down: plain records, packed with msgpack.

Fields are stored by position. A later version may add fields at the end, with defaults; anything else
needs a new schema version (`polybus.store.schema`). Times are on the wall clock: the broker's own clock
means nothing to the next process. `offset` is what has to be added to the broker's clock to get there.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from polybus.broker.lifecycle import RequestState
from polybus.broker.links import Encoding
from polybus.broker.message import NO_MESSAGE_PROPERTIES, Message, MessageProperties, Run
from polybus.broker.request import Request
from polybus.broker.sessions import Session, Will

Encodings: TypeAlias = Mapping[str, Encoding]
"""Those that runs can have, by name."""


class MessageRecord(msgspec.Struct, array_like=True, tag="message", frozen=True):
    topic: str
    payload: bytes
    qos: int
    retain: bool
    priority: bool
    expires_at: float | None
    properties: MessageProperties | None
    origin: str
    waits: bool
    stamp: int = 0


class RunRecord(msgspec.Struct, array_like=True, tag="run", frozen=True):
    wire: bytes
    count: int
    encoding: str
    origin: str
    qos: int
    ids_at: tuple[int, ...]
    """Start, stop and step of a range if `is_range`."""
    is_range: bool


class WillRecord(msgspec.Struct, array_like=True, frozen=True):
    message: MessageRecord
    delay_s: float
    expiry_s: float | None


class SessionRecord(msgspec.Struct, array_like=True, frozen=True):
    client_id: str
    user: str | None
    owner: str
    expiry_s: float
    is_connected: bool
    ends_at: float | None
    will_at: float | None
    will: WillRecord | None


class RequestRecord(msgspec.Struct, array_like=True, frozen=True):
    message: MessageRecord
    owner: str
    packet_id: int
    state: RequestState
    created_at: float
    deadline: float
    losses: int
    answer: bytes | None
    answer_properties: MessageProperties | None
    reason: str
    kept_until: float | None
    """How long its end waits for its requester."""


PieceRecord: TypeAlias = MessageRecord | RunRecord

pack: Final = msgspec.msgpack.Encoder().encode
unpack_piece: Final = msgspec.msgpack.Decoder(PieceRecord).decode
unpack_message: Final = msgspec.msgpack.Decoder(MessageRecord).decode
unpack_session: Final = msgspec.msgpack.Decoder(SessionRecord).decode
unpack_request: Final = msgspec.msgpack.Decoder(RequestRecord).decode
unpack_ids: Final = msgspec.msgpack.Decoder(list[int]).decode


def message_record(message: Message, offset: float) -> MessageRecord:
    return MessageRecord(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.priority,
        _shifted(message.expires_at, offset),
        _said(message.properties),
        message.origin,
        message.waits,
        message.stamp,
    )


def message_of(record: MessageRecord, offset: float) -> Message:
    return Message(
        record.topic,
        record.payload,
        record.qos,
        record.retain,
        record.priority,
        _shifted(record.expires_at, -offset),
        record.properties or NO_MESSAGE_PROPERTIES,
        record.origin,
        record.waits,
        stamp=record.stamp,
    )


def run_record(run: Run) -> RunRecord:
    at = run.ids_at
    is_range = isinstance(at, range)
    ids_at = (at.start, at.stop, at.step) if isinstance(at, range) else tuple(at)
    return RunRecord(run.wire, run.count, run.encoding.name, run.origin, run.qos, ids_at, is_range)


def run_of(record: RunRecord, encodings: Encodings) -> Run:
    ids_at = range(*record.ids_at) if record.is_range else record.ids_at
    return Run(record.wire, record.count, encodings[record.encoding], record.origin, record.qos, ids_at)


def piece_record(body: Message | Run, offset: float) -> bytes:
    return pack(run_record(body) if isinstance(body, Run) else message_record(body, offset))


def session_record(session: Session, offset: float) -> bytes:
    will = session.will
    return pack(
        SessionRecord(
            session.client_id,
            session.user,
            session.owner,
            session.expiry_s,
            session.link is not None,
            _shifted(session.ends_at, offset),
            _shifted(session.will_at, offset),
            None
            if will is None
            else WillRecord(message_record(will.message, offset), will.delay_s, will.expiry_s),
        )
    )


def session_of(record: SessionRecord, offset: float, alive_at: float) -> Session:
    """A session without its connection. `alive_at`: when it lost it, if it had one to the last."""
    session = Session(record.client_id)
    session.user = record.user
    session.owner = record.owner
    session.expiry_s = record.expiry_s
    will = record.will
    if will is not None:
        session.will = Will(message_of(will.message, offset), will.delay_s, will.expiry_s)
    ends_at, will_at = record.ends_at, record.will_at
    if record.is_connected:
        ends_at = alive_at + record.expiry_s
        will_at = None if will is None else alive_at + will.delay_s
    session.ends_at = _shifted(ends_at, -offset)
    session.will_at = _shifted(will_at, -offset)
    return session


def request_record(request: Request, offset: float, kept_until: float | None) -> bytes:
    return pack(
        RequestRecord(
            message_record(request.message, offset),
            request.owner,
            request.packet_id,
            request.state,
            request.created_at + offset,
            request.deadline + offset,
            request.losses,
            request.answer,
            _said(request.answer_properties),
            request.reason,
            _shifted(kept_until, offset),
        )
    )


def request_of(serial: int, record: RequestRecord, offset: float) -> Request:
    message = message_of(record.message, offset)
    created_at = record.created_at - offset
    request = Request(message, record.owner, record.packet_id, serial, may_wait=True, now=created_at)
    request.deadline = record.deadline - offset
    request.state = record.state
    request.losses = record.losses
    request.answer = record.answer
    request.answer_properties = record.answer_properties or NO_MESSAGE_PROPERTIES
    request.reason = record.reason
    return request


def _said(properties: MessageProperties) -> MessageProperties | None:
    return None if properties is NO_MESSAGE_PROPERTIES else properties


def _shifted(when: float | None, offset: float) -> float | None:
    return None if when is None else when + offset
