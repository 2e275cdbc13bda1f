"""Segments of the spool as bytes: what was promised is found or missed loudly, what was not goes silently."""

import random

import pytest

from polybus.pipeline.sources.mqtt.frames import MAGIC, Damage, encode_frame, scan

SEED = 7


def segment(*groups: list[bytes]) -> tuple[bytes, list[int]]:
    """Groups of bodies, each group synced as one; returns where groups end."""
    data, row, ends = MAGIC, 0, []
    for group in groups:
        synced = len(data)
        for body in group:
            data += b"".join(encode_frame(body, rows=2, first=row, synced=synced, seed=SEED))
            row += 2
        ends.append(len(data))
    return data, ends


def test_all_is_found() -> None:
    data, _ = segment([b"one", b""], [b"three"])
    found = scan(data, 0, SEED)
    assert [(frame.first, frame.next, frame.size) for frame in found.frames] == [
        (0, 2, 3),
        (2, 4, 0),
        (4, 6, 5),
    ]
    assert found.end == len(data)


def test_cut_at_every_byte() -> None:
    """What is left is the frames that are whole."""
    data, _ = segment([b"one", b"two"], [b"three", b"x" * 50])
    ends = [frame.end for frame in scan(data, 0, SEED).frames]
    for length in range(len(data)):
        found = scan(data[:length], 0, SEED)
        assert len(found.frames) == sum(end <= length for end in ends)
        assert found.end == max([end for end in ends if end <= length], default=min(length, len(MAGIC)))


def test_every_flipped_bit_before_the_last_sync_is_damage() -> None:
    data, ends = segment([b"one", b"two"], [b"three"], [b"four", b"five"])
    chance = random.Random(1)
    for at in range(ends[1]):
        bad = bytearray(data)
        bad[at] ^= 1 << chance.randrange(8)
        with pytest.raises(Damage):
            scan(bytes(bad), 0, SEED)


def test_a_bad_byte_in_the_last_group_was_never_promised() -> None:
    """Power went while a group was written, and its second frame reached the disk before its first."""
    data, ends = segment([b"one"], [b"two", b"three"])
    for at in range(ends[0], ends[1]):
        bad = bytearray(data)
        bad[at] ^= 0x10
        second = ends[0] + (len(data) - ends[0] - 2) // 2  # its body is two bytes shorter than the third's
        assert len(scan(bytes(bad), 0, SEED).frames) == (1 if at < second else 2)


def test_a_payload_cannot_pass_for_a_frame() -> None:
    """A publisher that knows the format but not the spool's seed."""
    forged = b"".join(encode_frame(b"forged", rows=1, first=2, synced=1 << 40, seed=SEED + 1))
    data, ends = segment([b"one"], [forged])
    assert scan(data[:-1], 0, SEED).end == ends[0]
    bad = bytearray(data)
    bad[ends[0] + 12] ^= 1
    assert scan(bytes(bad), 0, SEED).end == ends[0]


def test_another_file_is_not_a_segment() -> None:
    for data in (b"PK\x03\x04 something else", b"\0" * 8, b"X"):
        with pytest.raises(Damage, match="not a segment"):
            scan(data, 0, SEED)


def test_rows_that_do_not_follow_are_not_taken() -> None:
    data, _ = segment([b"one"])
    assert scan(data, 5, SEED).frames == ()
