"""A tree of topic levels that answers both questions a broker has.

Stored under filters, `match_name` finds every value whose filter matches a topic name
(subscriptions). Stored under names, `match_filter` finds every value whose name matches a filter
(retained messages, cached routes). Both walk level by level without recursion, so neither a deep
topic nor a filter full of wildcards can exhaust the stack; the cost is bounded by the nodes that
really match a prefix of the question.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Node(Generic[T]):
    __slots__ = ("children", "value")

    def __init__(self) -> None:
        self.children: dict[str, Node[T]] | None = None
        self.value: T | None = None


class TopicTree(Generic[T]):
    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: Node[T] = Node()

    def get(self, path: str) -> T | None:
        node = self._root
        for level in path.split("/"):
            if node.children is None:
                return None
            child = node.children.get(level)
            if child is None:
                return None
            node = child
        return node.value

    def put(self, path: str, value: T) -> T | None:
        """Store `value` and return what it replaces."""
        node = self._root
        for level in path.split("/"):
            children = node.children
            if children is None:
                children = node.children = {}
            child = children.get(level)
            if child is None:
                child = children[level] = Node()
            node = child
        replaced, node.value = node.value, value
        return replaced

    def remove(self, path: str) -> T | None:
        """Take a value out, and with it every node that only led there."""
        node = self._root
        trail: list[tuple[Node[T], str]] = []
        for level in path.split("/"):
            child = node.children.get(level) if node.children else None
            if child is None:
                return None
            trail.append((node, level))
            node = child
        removed, node.value = node.value, None
        while trail and not node.children and node.value is None:
            node, level = trail.pop()
            assert node.children is not None
            del node.children[level]
            if not node.children:
                node.children = None
        return removed

    def items(self) -> Iterator[tuple[str, T]]:
        """Every path and its value. The tree must not change meanwhile."""
        stack: list[tuple[str, Node[T]]] = [("", self._root)]
        while stack:
            path, node = stack.pop()
            if node.value is not None:
                yield path[1:], node.value
            stack.extend((f"{path}/{level}", child) for level, child in (node.children or {}).items())

    def match_name(self, name: str) -> list[T]:
        """Values stored under filters that match this topic name."""
        found: list[T] = []
        # [MQTT-4.7.2-1] a filter that starts with a wildcard does not match names that start with $.
        wildcards_match = not name.startswith("$")
        frontier = [self._root]
        for level in name.split("/"):
            reached: list[Node[T]] = []
            for node in frontier:
                children = node.children
                if children is None:
                    continue
                child = children.get(level)
                if child is not None:
                    reached.append(child)
                if wildcards_match:
                    child = children.get("+")
                    if child is not None:
                        reached.append(child)
                    child = children.get("#")
                    if child is not None and child.value is not None:
                        found.append(child.value)
            wildcards_match = True
            frontier = reached
        for node in frontier:
            if node.value is not None:
                found.append(node.value)
            if node.children is not None:  # "sport/#" matches "sport" too
                child = node.children.get("#")
                if child is not None and child.value is not None:
                    found.append(child.value)
        return found

    def match_filter(self, path: str) -> Iterator[T | None]:
        """Values stored under names that match this filter, one by one.

        None comes between values as a heartbeat while nothing matches, so that a caller can stop
        and go on later. The tree may change meanwhile: a value is read when it is reached.
        """
        levels = path.split("/")
        last = len(levels) - 1
        stack: list[tuple[Node[T], int]] = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            if depth > last:
                yield node.value
                continue
            level = levels[depth]
            if level == "#":
                if depth and node.value is not None:
                    yield node.value
                yield from _descend(node, skip_hidden=depth == 0)
            elif level == "+":
                if node.children is not None:
                    for name, child in list(node.children.items()):
                        if depth or not name.startswith("$"):
                            stack.append((child, depth + 1))
                yield None
            else:
                child_at = node.children.get(level) if node.children is not None else None
                if child_at is not None:
                    stack.append((child_at, depth + 1))
                yield None


def _descend(top: Node[T], *, skip_hidden: bool) -> Iterator[T | None]:
    """Every value below `top`."""
    if top.children is None:
        return
    stack = [c for name, c in top.children.items() if not (skip_hidden and name.startswith("$"))]
    while stack:
        node = stack.pop()
        yield node.value
        if node.children is not None:
            stack.extend(node.children.values())
