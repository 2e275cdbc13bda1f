"""The tree of topic levels: it finds what a naive matcher finds, prunes itself, and is not slowed down."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.broker.tree import Node, TopicTree
from tests.broker.naive import filters, matches, names
from tests.wire.mqtt.strategies import so_many

changes = st.booleans()  # put or remove


@so_many(300)
@given(st.lists(st.tuples(changes, filters)), st.lists(names, min_size=1, max_size=8))
def test_filters_that_match_a_name(steps: list[tuple[bool, str]], asked: list[str]) -> None:
    tree, model = build(steps)
    for name in asked:
        assert sorted(tree.match_name(name)) == sorted(f for f in model if matches(f, name))


@so_many(300)
@given(st.lists(st.tuples(changes, names)), st.lists(filters, min_size=1, max_size=8))
def test_names_that_match_a_filter(steps: list[tuple[bool, str]], asked: list[str]) -> None:
    tree, model = build(steps)
    for topic_filter in asked:
        found = [value for value in tree.match_filter(topic_filter) if value is not None]
        assert sorted(found) == sorted(n for n in model if matches(topic_filter, n))


@so_many(200)
@given(st.lists(st.tuples(changes, filters | names), max_size=30))
def test_nothing_is_left_of_what_was_removed(steps: list[tuple[bool, str]]) -> None:
    tree, model = build(steps)
    for path in model:
        assert tree.get(path) == path
    needed = {tuple(path.split("/")[:n]) for path in model for n in range(1, path.count("/") + 2)}
    assert sum(1 for _ in all_nodes(tree)) == len(needed) + 1
    for path in model:
        assert tree.remove(path) == path
        assert tree.get(path) is None
        assert tree.remove(path) is None
    assert tree._root.children is None


def test_put_returns_what_it_replaces() -> None:
    tree: TopicTree[int] = TopicTree()
    assert tree.put("a/b", 1) is None
    assert tree.put("a/b", 2) == 1
    assert tree.get("a") is None
    assert tree.remove("a") is None
    assert tree.get("a/b") == 2


def test_the_tree_may_change_while_it_is_walked() -> None:
    tree, _ = build([(True, f"a/{n}") for n in range(100)])
    walk = tree.match_filter("#")
    seen = [next(walk) for _ in range(50)]
    for n in range(100):
        tree.remove(f"a/{n}")
    tree.put("a/new", "a/new")
    rest = list(walk)
    assert all(value is None or value == "a/new" for value in rest)
    assert len([v for v in seen if v is not None]) >= 48


# -- filters built to be slow ------------------------------------------------------------------------


def test_a_name_costs_no_more_than_the_filters_that_match_its_beginning() -> None:
    """Every mix of `a` and `+` over 10 levels: 1,024 filters match, and no node is visited twice."""
    tree: TopicTree[str] = TopicTree()
    for number in range(1024):
        path = "/".join("+" if number >> bit & 1 else "a" for bit in range(10))
        tree.put(path, path)
    nodes = sum(1 for _ in all_nodes(tree))
    counter = count_steps(tree)
    assert len(tree.match_name("/".join("a" * 10))) == 1024
    assert counter.steps <= 3 * nodes


def test_filters_that_do_not_begin_as_the_name_cost_nothing() -> None:
    tree: TopicTree[int] = TopicTree()
    for number in range(5_000):
        tree.put(f"x/{number}/+/+/+/#", number)
    counter = count_steps(tree)
    assert tree.match_name("/".join("y" * 100)) == []
    assert counter.steps <= 3 * 100


@pytest.mark.parametrize("levels", [2, 128, 65_536])
def test_deep_names_and_deep_filters_are_walked_once(levels: int) -> None:
    """Slashes only: as many empty levels as 65,535 bytes can hold."""
    tree: TopicTree[str] = TopicTree()
    deep = "/" * (levels - 1)
    plus = "/".join("+" * levels)
    for path in (plus, plus + "/#", "#"):
        tree.put(path, path)
    counter = count_steps(tree)
    assert sorted(tree.match_name(deep)) == sorted((plus, plus + "/#", "#"))
    assert counter.steps <= 4 * levels
    stored: TopicTree[str] = TopicTree()
    stored.put(deep, deep)
    counter = count_steps(stored)
    for path in (plus, plus + "/#", "#", deep):
        assert [v for v in stored.match_filter(path) if v is not None] == [deep]
    assert counter.steps <= 4 * 2 * levels
    assert stored.remove(deep) == deep


@pytest.mark.parametrize("topic_filter", ["#", "+/#", "+/+/#", "+/+/+", "+/x/+", "+/+/x", "root/+/x", "root/#"])
def test_a_walk_over_many_names_visits_each_node_once(topic_filter: str) -> None:
    tree: TopicTree[int] = TopicTree()
    for number in range(10_000):
        tree.put(f"root/{number % 100}/{number // 100}", number)
    nodes = sum(1 for _ in all_nodes(tree))
    counter = count_steps(tree)
    expected = sum(matches(topic_filter, f"root/{n % 100}/{n // 100}") for n in range(10_000))
    assert sum(1 for v in tree.match_filter(topic_filter) if v is not None) == expected
    assert counter.steps <= 2 * nodes


@pytest.mark.parametrize("topic_filter", ["+/x", "+/+/x", "+/leaf/x/#"])
def test_a_walk_that_finds_nothing_pauses_often(topic_filter: str) -> None:
    """The caller is to get a turn between steps of bounded work, whatever the filter asks for."""
    tree: TopicTree[int] = TopicTree()
    for number in range(20_000):
        tree.put(f"{number}/leaf", number)
    counter = count_steps(tree, lookups_only=True)
    most = before = 0
    for _ in tree.match_filter(topic_filter):
        most = max(most, counter.steps - before)
        before = counter.steps
    most = max(most, counter.steps - before)
    assert most <= 1_000


# -- helpers --------------------------------------------------------------------------------------------


def build(steps: list[tuple[bool, str]]) -> tuple[TopicTree[str], set[str]]:
    tree: TopicTree[str] = TopicTree()
    model: set[str] = set()
    for put, path in steps:
        if put:
            assert tree.put(path, path) == (path if path in model else None)
            model.add(path)
        else:
            assert tree.remove(path) == (path if path in model else None)
            model.discard(path)
    return tree, model


def all_nodes(tree: TopicTree[Any]) -> Iterator[Node[Any]]:
    stack = [tree._root]
    while stack:
        node = stack.pop()
        yield node
        stack += (node.children or {}).values()


class StepCounter:
    steps = 0


def count_steps(tree: TopicTree[Any], *, lookups_only: bool = False) -> StepCounter:
    """From now on every child that is looked up or listed counts as one step."""
    counter = StepCounter()

    class CountingChildren(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            counter.steps += 1
            return super().get(key, default)

        def items(self) -> Any:
            counter.steps += 0 if lookups_only else len(self)
            return super().items()

        def values(self) -> Any:
            counter.steps += 0 if lookups_only else len(self)
            return super().values()

    for node in list(all_nodes(tree)):
        if node.children is not None:
            node.children = CountingChildren(node.children)
    return counter
