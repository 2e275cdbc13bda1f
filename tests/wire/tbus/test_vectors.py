"""Every shared case, decoded as it may arrive and encoded again."""

from contextlib import suppress

import pytest

from polybus.errors import PeerError, UsageError
from polybus.wire.tbus.codec import decode, encode, frames
from polybus.wire.tbus.layouts import LAYOUTS
from polybus.wire.tbus.packets import Bulk, MessageType
from tests.wire.arrivals import ARRIVALS, Arrival, byte_by_byte, glued
from tests.wire.tbus.stream import parts, read
from tests.wire.tbus.vectors import BulkCase, Case, case_id, error_cases, load, packet_cases


def test_names_are_unique() -> None:
    for cases in (load().cases, load().bulks):
        names = [case.name for case in cases]
        assert len(set(names)) == len(names)
    assert all((case.packet is None) != (case.error is None) for case in load().cases)


@pytest.mark.parametrize("arrive", ARRIVALS)
@pytest.mark.parametrize("case", packet_cases(), ids=case_id)
def test_decode(case: Case, arrive: Arrival) -> None:
    count = 2 if arrive is glued else 1
    assert read(arrive(case.data), load().max_size) == [case.expected()] * count


@pytest.mark.parametrize("case", packet_cases(), ids=case_id)
def test_nothing_is_read_before_the_last_byte(case: Case) -> None:
    assert read(byte_by_byte(case.data[:-1])) == []


@pytest.mark.parametrize("case", packet_cases(), ids=case_id)
def test_encode(case: Case) -> None:
    written = encode(case.expected())
    if case.decode_only:
        assert written != case.data
        assert read([written]) == [case.expected()]
    else:
        assert written.hex(" ") == case.hex


@pytest.mark.parametrize("arrive", ARRIVALS)
@pytest.mark.parametrize("case", error_cases(), ids=case_id)
def test_refuse(case: Case, arrive: Arrival) -> None:
    assert case.error is not None
    with pytest.raises(PeerError) as raised:
        read(arrive(case.data), load().max_size)
    assert (raised.value.reason_code, raised.value.rule) == (case.error.reason_code, case.error.rule)
    assert raised.value.text


@pytest.mark.parametrize("arrive", ARRIVALS)
@pytest.mark.parametrize("case", load().bulks, ids=case_id)
def test_bulk(case: BulkCase, arrive: Arrival) -> None:
    bulks = read(arrive(case.data), load().max_size)
    assert len(bulks) == (2 if arrive is glued else 1)
    for bulk in bulks:
        assert isinstance(bulk, Bulk)
        taken, error = take(bulk)
        assert taken == case.messages
        assert error == (case.error and (case.error.reason_code, case.error.rule))


@pytest.mark.parametrize("case", load().bulks, ids=case_id)
def test_encode_bulk(case: BulkCase) -> None:
    """`encode` looks as far as the headers inside."""
    bulk = Bulk(parts(case.data)[1])
    if case.error is None or case.name in ("a message that cannot be read", "a type that is not used"):
        assert encode(bulk) == case.data
    else:
        with pytest.raises(UsageError, match=f"\\[{case.error.rule}\\]"):
            encode(bulk)


def take(bulk: Bulk) -> tuple[list[str], tuple[int, str] | None]:
    """The messages of a BULK, as a session handles them one by one, and the error that ended that."""
    taken = []
    pos = 0
    try:
        for first_byte, start, end in frames(bulk.body):
            decode(first_byte, bulk.body[start:end])
            taken.append(bulk.body[pos:end].hex(" "))
            pos = end
    except PeerError as error:
        return taken, (error.reason_code, error.rule)
    return taken, None


def test_every_type_has_cases() -> None:
    good = {case.data[0] >> 4 for case in packet_cases()}
    bad = {case.data[0] >> 4 for case in error_cases()}
    assert good == set(MessageType)
    assert bad == set(range(16))


def test_every_rule_has_a_case() -> None:
    cited = {case.error.rule for case in error_cases() if case.error is not None}
    assert cited == {"TB-01", "TB-02"} | {layout.rule for layout in LAYOUTS.values()}


@pytest.mark.parametrize("case", packet_cases(), ids=case_id)
def test_a_body_cut_anywhere(case: Case) -> None:
    """With a header that tells the truth: another message, or the peer's fault, and nothing else."""
    first_byte, body = parts(case.data)
    for size in range(len(body)):
        with suppress(PeerError):
            decode(first_byte, body[:size])
