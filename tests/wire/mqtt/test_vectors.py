"""Every shared case, decoded as it may arrive and encoded again."""

import pytest

from polybus.errors import PeerError
from polybus.wire.mqtt.codec import encode
from tests.wire.arrivals import ARRIVALS, Arrival, byte_by_byte, glued
from tests.wire.mqtt.stream import read
from tests.wire.mqtt.vectors import Case, case_id, error_cases, load, packet_cases


def test_names_are_unique() -> None:
    names = [case.name for case in load().cases]
    assert len(set(names)) == len(names)
    assert all((case.packet is None) != (case.error is None) for case in load().cases)


@pytest.mark.parametrize("arrive", ARRIVALS)
@pytest.mark.parametrize(("case", "version"), packet_cases(), ids=case_id)
def test_decode(case: Case, version: int, arrive: Arrival) -> None:
    count = 2 if arrive is glued else 1
    assert read(arrive(case.data), version, load().max_size) == [case.expected()] * count


@pytest.mark.parametrize(("case", "version"), packet_cases(), ids=case_id)
def test_nothing_is_read_before_the_last_byte(case: Case, version: int) -> None:
    assert read(byte_by_byte(case.data[:-1]), version) == []


@pytest.mark.parametrize(("case", "version"), packet_cases(), ids=case_id)
def test_encode(case: Case, version: int) -> None:
    written = encode(case.expected(), version)
    if case.decode_only:
        assert written != case.data
        assert read([written], version) == [case.expected()]
    else:
        assert written.hex(" ") == case.hex


@pytest.mark.parametrize("arrive", ARRIVALS)
@pytest.mark.parametrize(("case", "version"), error_cases(), ids=case_id)
def test_refuse(case: Case, version: int, arrive: Arrival) -> None:
    assert case.error is not None
    with pytest.raises(PeerError) as raised:
        read(arrive(case.data), version, load().max_size)
    assert (f"0x{raised.value.reason_code:02x}", raised.value.rule) == (case.error.reason_code, case.error.rule)
    assert raised.value.text
