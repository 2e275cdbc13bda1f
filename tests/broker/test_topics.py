"""What is a topic name, what is a filter, and what is neither."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.broker.topics import InvalidTopic, ParsedFilter, check_topic_name, parse_filter
from tests.broker.naive import filters, names
from tests.wire.mqtt.strategies import so_many

LEVELS = 8


@pytest.mark.parametrize("name", ["a", "/", "//", "a/b", " ", "$SYS/x", "ä/€", "a" * 1000, "/" * 7])
def test_names(name: str) -> None:
    check_topic_name(name, LEVELS)


@pytest.mark.parametrize("name", ["", "+", "a/+", "#", "a#", "a\0b", "/" * 8])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic_name(name, LEVELS)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("a", ParsedFilter("a", None)),
        ("#", ParsedFilter("#", None)),
        ("+", ParsedFilter("+", None)),
        ("/+/#", ParsedFilter("/+/#", None)),
        ("$share/g/a", ParsedFilter("a", "g")),
        ("$share/g//", ParsedFilter("/", "g")),
        ("$share/g/+/#", ParsedFilter("+/#", "g")),
        ("$shared/a", ParsedFilter("$shared/a", None)),
        ("$share", ParsedFilter("$share", None)),
        ("$SYS/#", ParsedFilter("$SYS/#", None)),
        ("+/" * 7 + "#", ParsedFilter("+/" * 7 + "#", None)),
    ],
)
def test_filters(text: str, parsed: ParsedFilter) -> None:
    assert parse_filter(text, LEVELS) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "", "a+", "+a", "a/b+/c", "#/", "#/a", "a#", "a/#/b", "##", "++", "a\0", "+/" * 8,
        "$share/", "$share//", "$share//a", "$share/g", "$share/g/", "$share/+/a", "$share/a#/b", "$share/g/a#",
    ],
)  # fmt: skip
def test_what_is_no_filter(text: str) -> None:
    with pytest.raises(InvalidTopic):
        parse_filter(text, LEVELS)


@so_many(200)
@given(names)
def test_a_name_is_a_filter_for_itself(name: str) -> None:
    check_topic_name(name, LEVELS)
    assert parse_filter(name, LEVELS).path == name


@so_many(200)
@given(filters, st.from_regex(r"[a-z]{1,3}", fullmatch=True))
def test_a_shared_filter_keeps_its_path(path: str, group: str) -> None:
    assert parse_filter(f"$share/{group}/{path}", LEVELS) == ParsedFilter(path, group)


@so_many(300)
@given(st.text("ab/+#$\0", max_size=10))
def test_any_text_is_judged(text: str) -> None:
    for judge in (check_topic_name, parse_filter):
        with contextlib.suppress(InvalidTopic):
            judge(text, LEVELS)
