"""Rules against a matcher so plain that it cannot be wrong, and against clients that cheat."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polybus.ops.acl import AclAuthorizer, covers, overlap
from polybus.ops.config import AclRule

DEPTH = 4
# `z` stands for every level that no filter names; one level more than any filter has, for `#`.
TOPICS = [
    list(levels) for depth in range(1, DEPTH + 2) for levels in product(["a", "", "$s", "z"], repeat=depth)
]


def naive_match(filter_levels: list[str], topic: list[str]) -> bool:
    """MQTT 5.0 section 4.7, word for word."""
    if topic[0].startswith("$") and filter_levels[0] in ("+", "#"):
        return False
    if not filter_levels:
        return not topic
    return _match_rest(filter_levels, topic)


def _match_rest(filter_levels: list[str], topic: list[str]) -> bool:
    if filter_levels == ["#"]:
        return True  # the parent level, and all below
    if not filter_levels or not topic:
        return not filter_levels and not topic
    return filter_levels[0] in ("+", topic[0]) and _match_rest(filter_levels[1:], topic[1:])


@st.composite
def filters(draw: st.DrawFn) -> list[str]:
    levels = draw(st.lists(st.sampled_from(["a", "", "$s", "+"]), max_size=DEPTH))
    return [*levels, "#"][: DEPTH + 1] if draw(st.booleans()) or not levels else levels


@given(filters(), filters())
def test_covers_means_every_topic_of_the_one_is_a_topic_of_the_other(
    rule: list[str], requested: list[str]
) -> None:
    naive = all(naive_match(rule, topic) for topic in TOPICS if naive_match(requested, topic))
    assert covers(rule, requested) == naive


@given(filters(), filters())
def test_overlap_means_a_topic_in_common(one: list[str], other: list[str]) -> None:
    naive = any(naive_match(one, topic) and naive_match(other, topic) for topic in TOPICS)
    assert overlap(one, other) == naive == overlap(other, one)


@given(filters(), st.sampled_from(TOPICS))
def test_covers_matches_topics(rule: list[str], topic: list[str]) -> None:
    assert covers(rule, topic) == naive_match(rule, topic)


@pytest.mark.parametrize(
    ("rule", "requested", "is_covered"),
    [
        ("a/#", "a/+/b", True),
        ("a/#", "a", True),
        ("a/#", "a/#", True),
        ("a/#", "#", False),
        ("a/+", "a/b", True),
        ("a/+", "a/+", True),
        ("a/+", "a/#", False),
        ("a/b", "a/+", False),
        ("#", "$SYS/#", False),
        ("+/#", "#", True),
        ("a/+/#", "a/#", False),
        ("$SYS/#", "$SYS/broker/+", True),
    ],
)
def test_coverage_examples(rule: str, requested: str, is_covered: bool) -> None:
    assert AclAuthorizer([AclRule(topic=rule)]).may_subscribe(None, "c", requested) is is_covered


class TestRules:
    def test_the_first_that_applies_decides(self) -> None:
        acl = AclAuthorizer(
            [
                AclRule(topic="a/mine"),
                AclRule(topic="a/#", permission="deny"),
                AclRule(topic="#"),
            ]
        )
        assert acl.may_publish(None, "c", "a/mine")
        assert not acl.may_publish(None, "c", "a/other")
        assert acl.may_publish(None, "c", "b")

    def test_a_deny_refuses_every_subscription_that_would_receive_it(self) -> None:
        acl = AclAuthorizer([AclRule(topic="secret/#", permission="deny"), AclRule(topic="#")])
        assert not acl.may_subscribe(None, "c", "#")
        assert not acl.may_subscribe(None, "c", "+/plan")
        assert not acl.may_subscribe(None, "c", "$share/g/#")
        assert acl.may_subscribe(None, "c", "public/#")
        assert acl.may_subscribe(None, "c", "$share/g/public/#")

    @pytest.mark.parametrize("allow_by_default", [True, False])
    def test_where_none_applies_the_default_holds(self, allow_by_default: bool) -> None:
        acl = AclAuthorizer([AclRule(topic="a")], allow_by_default=allow_by_default)
        assert acl.may_publish(None, "c", "b") is allow_by_default
        assert acl.may_subscribe(None, "c", "b") is allow_by_default

    def test_publish_and_subscribe_are_apart(self) -> None:
        acl = AclAuthorizer([AclRule(topic="in", action="publish"), AclRule(topic="out", action="subscribe")])
        assert acl.may_publish(None, "c", "in")
        assert not acl.may_subscribe(None, "c", "in")
        assert acl.may_subscribe(None, "c", "out")
        assert not acl.may_publish(None, "c", "out")

    @pytest.mark.parametrize(
        ("user", "client_id", "is_meant"),
        [("ann", "pump-1", True), ("bob", "pump-1", False), (None, "pump-1", False), ("ann", "fan-1", False)],
    )
    def test_patterns_choose_users_and_clients(self, user: str | None, client_id: str, is_meant: bool) -> None:
        acl = AclAuthorizer([AclRule(topic="a", user="an?", client="pump-*")])
        assert acl.may_publish(user, client_id, "a") is is_meant

    def test_a_user_pattern_means_users_that_logged_in(self) -> None:
        acl = AclAuthorizer([AclRule(topic="a", user="*"), AclRule(topic="b")])
        assert not acl.may_publish(None, "c", "a")
        assert acl.may_publish(None, "c", "b")
        assert acl.may_publish("ann", "c", "a")


class TestNames:
    RULES = (AclRule(topic="home/%u/#"), AclRule(topic="dev/%c/state"), AclRule(topic="%c/#"))

    def test_they_stand_for_user_and_client(self) -> None:
        acl = AclAuthorizer(self.RULES)
        assert acl.may_publish("ann", "c1", "home/ann/door")
        assert not acl.may_publish("ann", "c1", "home/bob/door")
        assert acl.may_publish("ann", "c1", "dev/c1/state")
        assert not acl.may_publish("ann", "c2", "dev/c1/state")
        assert acl.may_subscribe("ann", "c1", "home/ann/+/x")

    def test_no_user_no_corner(self) -> None:
        acl = AclAuthorizer(self.RULES)
        assert not acl.may_publish(None, "c1", "home//door")
        assert not acl.may_publish("", "c1", "home//door")

    @pytest.mark.parametrize("name", ["+", "#", "a/b", "+/#"])
    def test_a_name_is_no_wildcard_and_no_path(self, name: str) -> None:
        acl = AclAuthorizer(self.RULES)
        for topic_filter in ("home/ann/door", "home/+/door", "home/a/b", "#", "a/b/c", "dev/a/b/state"):
            assert not acl.may_subscribe(name, name, topic_filter)
        for topic in ("home/ann/door", "dev/x/state", "home/a/b", "a/b/c"):
            assert not acl.may_publish(name, name, topic)

    def test_a_client_cannot_call_itself_into_the_dollar_topics(self) -> None:
        assert not AclAuthorizer(self.RULES).may_subscribe(None, "$SYS", "$SYS/#")

    def test_a_name_does_not_stand_for_a_placeholder(self) -> None:
        acl = AclAuthorizer([AclRule(topic="x/%u/%c")])
        assert acl.may_publish("%c", "me", "x/%c/me")
        assert not acl.may_publish("%c", "me", "x/me/me")

    def test_a_deny_reaches_names_with_a_slash(self) -> None:
        acl = AclAuthorizer([AclRule(topic="out/%c", permission="deny"), AclRule(topic="#")])
        assert not acl.may_publish(None, "a/b", "out/a/b")
        assert acl.may_publish(None, "a/b", "out/a/c")
        assert acl.may_publish(None, "+", "out/a")
