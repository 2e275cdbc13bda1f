"""Storage: the victims of TB-13 in their order, who is served first, and books that never drift."""

from itertools import permutations
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polybus.broker.message import Message
from polybus.broker.request import Request
from polybus.broker.storage import Kind, Storage, Stored
from tests.broker.books import check_storage
from tests.broker.naive import filters, matches, names
from tests.examples import examples

MANY = 1 << 40

# From worth least to worth most (TB-13).
WORTH = [
    (Kind.MESSAGE, False),
    (Kind.MESSAGE, True),
    (Kind.REQUEST, False),
    (Kind.REQUEST, True),
]


def entry(
    kind: Kind = Kind.MESSAGE,
    priority: bool = False,
    *,
    topic: str = "t",
    size: int = 1,
    origin: str = "c",
    name: bytes = b"",
) -> Stored:
    message = Message(topic, name, priority=priority, origin=origin)
    request = None if kind is Kind.MESSAGE else cast("Request", SimpleNamespace(owner=origin))
    return Stored(kind, message, request, size, 0.0)


class Shop:
    """A storage, and who had to go."""

    def __init__(self, max_messages: int = 1000, max_bytes: int = MANY) -> None:
        self.victims: list[Stored] = []
        self.storage = Storage(max_messages, max_bytes, self.victims.append)

    def take_victims(self) -> list[Stored]:
        victims, self.victims[:] = list(self.victims), []
        return victims


# -- victims -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_bytes", [False, True], ids=["count", "bytes"])
@pytest.mark.parametrize("order", list(permutations(range(4))), ids=lambda order: "".join(map(str, order)))
def test_the_order_of_victims(order: tuple[int, ...], by_bytes: bool) -> None:
    """Whatever came first, and whether entries or bytes run out."""
    shop = Shop(4 if not by_bytes else 1000, 40 if by_bytes else MANY)
    entries = {worth: entry(*WORTH[worth], size=10) for worth in order}
    for worth in order:
        assert shop.storage.put(entries[worth])
    assert not shop.victims
    for worth in range(4):
        assert shop.storage.put(entry(Kind.REQUEST, True, size=10))
        assert shop.take_victims() == [entries[worth]]
    check_storage(shop.storage, list(shop.storage.matching(Kind.REQUEST, "#")))


@pytest.mark.parametrize("priority", [False, True])
def test_answers_are_worth_what_requests_are_worth(priority: bool) -> None:
    shop = Shop(2)
    first, second = entry(Kind.OUTCOME, priority), entry(Kind.REQUEST, priority)
    shop.storage.put(first)
    shop.storage.put(second)
    third, fourth = entry(Kind.REQUEST, priority), entry(Kind.OUTCOME, priority)
    shop.storage.put(third)
    assert shop.take_victims() == [first], "the oldest, not the one of its kind"
    shop.storage.put(fourth)
    assert shop.take_victims() == [second]


@pytest.mark.parametrize(("kind", "priority"), WORTH)
def test_of_equals_the_oldest_goes(kind: Kind, priority: bool) -> None:
    shop = Shop(3)
    entries = [entry(kind, priority, topic=f"t/{n % 2}") for n in range(5)]
    assert all(shop.storage.put(e) for e in entries)
    assert shop.victims == entries[:2]
    assert list(shop.storage.matching(kind, "t/+")) == entries[2:]


@pytest.mark.parametrize("newcomer", range(4))
@pytest.mark.parametrize("there", range(4))
def test_a_newcomer_may_be_the_victim(newcomer: int, there: int) -> None:
    shop = Shop(1)
    old, new = entry(*WORTH[there]), entry(*WORTH[newcomer])
    shop.storage.put(old)
    is_worthy = newcomer >= there
    assert shop.storage.put(new) == is_worthy
    assert shop.victims == ([old] if is_worthy else []), "who is refused is not told of as a victim"
    kept = new if is_worthy else old
    check_storage(shop.storage, list(shop.storage.matching(kept.kind, "t")))
    assert list(shop.storage.matching(kept.kind, "t")) == [kept]


def test_nothing_is_deleted_for_a_newcomer_that_does_not_fit_anyway() -> None:
    shop = Shop(10, 100)
    plain, request = entry(size=40), entry(Kind.REQUEST, size=40)
    shop.storage.put(plain)
    shop.storage.put(request)
    assert not shop.storage.put(entry(size=61)), "beside the request there are 60"
    assert not shop.storage.put(entry(Kind.REQUEST, True, size=101))
    assert not shop.victims
    assert shop.storage.put(entry(priority=True, size=60))
    assert shop.victims == [plain]


def test_as_many_victims_as_it_takes() -> None:
    shop = Shop(10, 100)
    small = [entry(size=10) for _ in range(10)]
    for each in small:
        shop.storage.put(each)
    shop.storage.put(entry(size=35))
    assert shop.take_victims() == small[:4]
    assert shop.storage.size_bytes == 95
    shop.storage.put(entry(size=5))
    assert not shop.victims


def test_no_room_at_all() -> None:
    shop = Shop(0)
    assert not shop.storage.put(entry(Kind.REQUEST, True))
    shop = Shop(5, 0)
    assert not shop.storage.put(entry(Kind.REQUEST, True))
    assert shop.storage.put(entry(size=0))


@pytest.mark.parametrize("by_bytes", [False, True], ids=["count", "bytes"])
def test_limits_are_lowered_at_run_time(by_bytes: bool) -> None:
    shop = Shop()
    entries = [entry(*worth, size=10) for worth in reversed(WORTH) for _ in range(2)]
    for each in entries:
        shop.storage.put(each)
    by_worth = [e for worth in WORTH for e in entries if (e.kind, e.message.priority) == worth]
    for left in (8, 7, 4, 1, 0):
        shop.storage.set_limits(1000 if by_bytes else left, 10 * left if by_bytes else MANY)
        assert shop.victims == by_worth[: 8 - left]
    check_storage(shop.storage, [])
    shop.storage.set_limits(1, 10)
    assert shop.storage.put(entry(size=10))


def test_raising_limits_makes_room() -> None:
    shop = Shop(1)
    shop.storage.put(entry())
    shop.storage.set_limits(2, MANY)
    shop.storage.put(entry())
    assert not shop.victims


def test_a_victim_may_be_told_of_by_storing_something() -> None:
    """Storage is whole when it tells of a victim."""
    kept: list[Stored] = []

    def on_victim(stored: Stored) -> None:
        if stored.kind is Kind.REQUEST:
            kept.append(entry(Kind.OUTCOME, stored.message.priority, origin="away"))
            storage.put(kept[-1])

    storage = Storage(2, MANY, on_victim)
    for _ in range(5):
        storage.put(entry(Kind.REQUEST))
    outcomes = storage.outcomes_of("away")
    check_storage(storage, outcomes + list(storage.matching(Kind.REQUEST, "t")))


# -- order -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.MESSAGE, Kind.REQUEST])
def test_priority_first_then_age_across_topics(kind: Kind) -> None:
    shop = Shop()
    said = [
        ("a/b", False),
        ("a/c", True),
        ("a/b", True),
        ("x", True),
        ("a/b", False),
        ("a", False),
        ("a/c", True),
    ]
    entries = [entry(kind, priority, topic=topic) for topic, priority in said]
    for each in entries:
        shop.storage.put(each)

    def order(path: str) -> list[int]:
        return [entries.index(s) for s in shop.storage.matching(kind, path)]

    assert order("a/b") == [2, 0, 4]
    assert order("a/+") == [1, 2, 6, 0, 4]
    assert order("a/#") == [1, 2, 6, 0, 4, 5]
    assert order("#") == [1, 2, 3, 6, 0, 4, 5]
    assert order("+") == [3, 5]
    assert order("b") == order("a/b/c") == []


def test_kinds_do_not_mix() -> None:
    shop = Shop()
    message, request, outcome = (entry(kind) for kind in Kind)
    for each in (message, request, outcome):
        shop.storage.put(each)
    assert list(shop.storage.matching(Kind.MESSAGE, "#")) == [message]
    assert list(shop.storage.matching(Kind.REQUEST, "#")) == [request]
    assert shop.storage.outcomes_of("c") == [outcome]
    assert shop.storage.outcomes_of("d") == []


# -- books -------------------------------------------------------------------------------------------


class Item(NamedTuple):
    stored: Stored
    worth: int


class Naive:
    """A list, searched from end to end."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.limits = (max_messages, max_bytes)
        self.items: list[Item] = []

    def fits(self, items: list[Item]) -> bool:
        return len(items) <= self.limits[0] and sum(i.stored.size_bytes for i in items) <= self.limits[1]

    def put(self, new: Item) -> tuple[bool, list[Stored]]:
        if not self.fits([i for i in self.items if i.worth > new.worth] + [new]):
            return False, []
        victims = self._shrink(beside=[new])
        self.items.append(new)
        return True, victims

    def set_limits(self, max_messages: int, max_bytes: int) -> list[Stored]:
        self.limits = (max_messages, max_bytes)
        return self._shrink(beside=[])

    def _shrink(self, beside: list[Item]) -> list[Stored]:
        victims = []
        while not self.fits(self.items + beside):
            least = min(self.items, key=lambda item: item.worth)  # the first of several: the oldest
            self.items.remove(least)
            victims.append(least.stored)
        return victims

    def matching(self, kind: Kind, path: str) -> list[Stored]:
        found = [i.stored for i in self.items if i.stored.kind is kind]
        found = [s for s in found if matches(path, s.message.topic)]
        return sorted(found, key=lambda stored: not stored.message.priority)


puts = st.tuples(
    st.just("put"), st.sampled_from(Kind), st.booleans(), names, st.integers(0, 40), st.sampled_from("cd")
)
takes = st.tuples(st.just("take"), st.integers(0, 100))
limits = st.tuples(st.just("limits"), st.integers(0, 8), st.integers(0, 200))


@settings(max_examples=examples(300))
@given(st.lists(puts | puts | puts | takes | limits, max_size=40), filters)
def test_storage_equals_a_naive_one(steps: list[tuple[Any, ...]], path: str) -> None:
    shop = Shop(5, 100)
    naive = Naive(5, 100)
    for verb, *rest in steps:
        if verb == "put":
            kind, priority, topic, size, origin = rest
            stored = entry(kind, priority, topic=topic, size=size, origin=origin)
            worth = WORTH.index((Kind.MESSAGE if kind is Kind.MESSAGE else Kind.REQUEST, priority))
            was_put, victims = naive.put(Item(stored, worth))
            assert shop.storage.put(stored) == was_put
        elif verb == "take":
            if not naive.items:
                continue
            item = naive.items.pop(rest[0] % len(naive.items))
            shop.storage.take(item.stored)
            victims = []
        else:
            victims = naive.set_limits(*rest)
            shop.storage.set_limits(*rest)
        assert shop.take_victims() == victims
        check_storage(shop.storage, [i.stored for i in naive.items])
        for kind in (Kind.MESSAGE, Kind.REQUEST):
            assert list(shop.storage.matching(kind, path)) == naive.matching(kind, path)
        for origin in "cd":
            outcomes = [i.stored for i in naive.items if i.stored.kind is Kind.OUTCOME]
            assert shop.storage.outcomes_of(origin) == [s for s in outcomes if s.message.origin == origin]
    for item in naive.items:
        shop.storage.take(item.stored)
    check_storage(shop.storage, [])
    assert not list(shop.storage._shelves.match_filter("#")), "no topic is left behind"
