"""Ways to spoil bytes. Each takes its chances from a `Random`, so that a seed repeats them."""

from collections.abc import Callable, Sequence
from random import Random

Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]

INTERESTING = (
    b"\0", b"\xff", b"\x7f\xff", b"\x80\x80\x80\x80", b"\xff\xff\xff\x7f", b"+", b"#", b"/", b"$share/",
)  # fmt: skip


def nothing(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    return data


def flip_bits(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def truncate(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    return data[: dice.randrange(len(data))]


def duplicate(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    return data * dice.randint(2, 6)


def lie_about_length(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    size = data[1] + dice.choice((-2, -1, 1, 2, 40, 127)) if len(data) > 1 else 0
    return data[:1] + bytes((size & 0xFF,)) + data[2:]


def lie_about_a_field(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + dice.randbytes(2) + data[at + 2 :]


def splice(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = dice.choice(corpus)
    return data[: dice.randint(0, len(data))] + other[dice.randint(0, len(other)) :]


def splice_body(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Another packet's body under this one's type, with a length that is right."""
    body = dice.choice(corpus)[2:][:120]
    return data[:1] + bytes((len(body),)) + body


def insert(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = dice.randint(0, len(data))
    return data[:at] + dice.choice(INTERESTING) + data[at:]


def delete(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = dice.randrange(len(data))
    return data[:at] + data[at + dice.randint(1, 4) :]


def noise(dice: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    return dice.randbytes(dice.randint(1, 30))


MUTATIONS: tuple[Mutation, ...] = (
    nothing, nothing, nothing, flip_bits, flip_bits, truncate, duplicate, lie_about_length,
    lie_about_a_field, splice, splice_body, insert, delete, noise,
)  # fmt: skip


def mutated(dice: Random, corpus: Sequence[bytes]) -> bytes:
    data = dice.choice(corpus)
    for _ in range(dice.choice((1, 1, 2))):
        if data:
            data = dice.choice(MUTATIONS)(dice, data, corpus)
    return data
