"""Which folders count, and which become one: decisions on names and numbers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.pipeline.folders import Folder, folder_name, in_force, parse_name, plan_merges


def single(batch: int) -> Folder:
    return Folder(folder_name(batch, 0), batch, batch)


def merged(folders: list[Folder]) -> Folder:
    level = 1 + max(each.level for each in folders)
    return Folder(folder_name(folders[-1].last, level), folders[0].first, folders[-1].last, level)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("batch=0", (0, 0)),
        ("batch=00", (0, 1)),
        ("batch=12", (12, 0)),
        ("batch=0012", (12, 2)),
        ("batch=10", (10, 0)),
        (".writing-12", None),
        ("batch=", None),
        ("batch=1x", None),
        ("day=2026-05-04", None),
    ],
)
def test_names(name: str, expected: tuple[int, int] | None) -> None:
    assert parse_name(name) == expected
    if expected is not None:
        assert folder_name(*expected) == name


def test_a_merged_folder_stands_for_what_it_was_made_from() -> None:
    singles = [single(batch) for batch in range(6)]
    first = merged(singles[2:4])
    assert in_force([*singles, first]) == ([*singles[:2], first, *singles[4:]], singles[2:4])
    second = merged([singles[1], first, singles[4]])
    live, dead = in_force([*singles, first, second])
    assert live == [singles[0], second, singles[5]]
    assert {each.name for each in dead} == {"batch=1", "batch=2", "batch=3", "batch=4", "batch=03"}


def test_so_many_of_a_size_become_one_and_the_rest_waits() -> None:
    folders = [single(batch) for batch in range(11)]
    plan = plan_merges(folders, lambda _: 1, fan_in=4)
    assert plan == [folders[:4], folders[4:8]]
    assert plan_merges(folders, lambda _: 1, fan_in=None) == [folders]


def test_folders_are_not_made_too_large() -> None:
    folders = [single(batch) for batch in range(6)]
    assert plan_merges(folders, lambda _: 40, fan_in=None, most_bytes=100) == [
        folders[0:2],
        folders[2:4],
        folders[4:6],
    ]
    assert plan_merges(folders, lambda _: 60, fan_in=None, most_bytes=100) == []


def test_neighbours_have_no_gap() -> None:
    folders = [single(0), single(1), single(5), single(6)]
    assert plan_merges(folders, lambda _: 1, fan_in=None) == [folders[:2], folders[2:]]


@given(st.integers(1, 400), st.integers(2, 8))
def test_every_batch_is_in_one_folder_and_there_are_few(count: int, fan_in: int) -> None:
    """As a run does it: after each batch, whatever is ready."""
    live: list[Folder] = []
    written = 0
    for batch in range(count):
        live.append(single(batch))
        for folders in plan_merges(live, lambda _: 0, fan_in=fan_in):
            written += sum(each.batches for each in folders)
            live, _ = in_force([*live, merged(folders)])
    assert live[0].first == 0
    assert live[-1].last == count - 1
    assert all(before.last + 1 == after.first for before, after in pairwise(live))
    tiers = 1
    while fan_in**tiers <= count:
        tiers += 1
    assert len(live) <= tiers * (fan_in - 1)
    assert written <= count * tiers  # each row once a tier
