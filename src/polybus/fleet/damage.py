"""Records that went wrong on the way, for a pipeline that must not: every kind that `decoding.Reason` knows."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec

from polybus.fleet.decoding import Limits
from polybus.fleet.records import Record, encode_record

YEAR_2000_MS: Final = 946_684_800_000

Damage = Callable[[str, bytes, Record], tuple[str, bytes]]
DAMAGES: Final[Sequence[tuple[float, Damage]]] = (
    # How often, what becomes of topic and payload.
    (10, lambda topic, payload, _: (topic, b"")),
    (10, lambda topic, payload, _: (topic, payload[: len(payload) // 2])),
    (10, lambda topic, payload, _: (topic, b'{"v":1,"id":"\xff\xfe"}')),
    (10, lambda topic, payload, record: (topic, _changed(record, truck=17))),
    (10, lambda topic, payload, record: (topic, _changed(record, v=9))),
    (10, lambda topic, payload, record: (topic, _changed(record, truck="someone else"))),
    (
        10,
        lambda topic, payload, record: (topic, encode_record(msgspec.structs.replace(record, at=YEAR_2000_MS))),
    ),
    (10, lambda topic, payload, _: (topic.rsplit("/", 1)[0] + "/weather", payload)),
    (1, lambda topic, payload, _: (topic, b" " * (Limits().max_payload_bytes + 1))),
)


def damaged(topic: str, payload: bytes, record: Record, random: Random) -> tuple[str, bytes]:
    weights = [weight for weight, _ in DAMAGES]
    _, damage = random.choices(DAMAGES, weights)[0]
    return damage(topic, payload, record)


def _changed(record: Record, **fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.to_builtins(record), **fields})
