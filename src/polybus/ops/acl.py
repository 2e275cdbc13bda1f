"""Access rules: who may publish and subscribe where. The first rule that applies decides.

A rule stands for the set of topics its filter matches.
- To publish, the topic must be in the set.
- An `allow` applies to a subscription only if the rule's filter covers it: everything the
  subscription could receive is in the set. `a/#` covers `a/+/b`.
- A `deny` applies to a subscription as soon as the two overlap: `deny secret/#` before
  `allow #` refuses a subscription to `#`, which would receive the secrets.

`%u` and `%c` stand for the user and the client id, which the other side chooses. A client called
`+` must not open every client's topics: an `allow` does not apply to a name with `/`, `+` or `#`
in it or `$` before it. A `deny` takes a name as it is; a topic cannot contain `+` or `#`, so there
is none to deny to such a name. No rule with `%u` applies to an anonymous client.
"""

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Final, TypeAlias

from polybus.broker.topics import SHARE_PREFIX
from polybus.ops.config import AclRule

Levels: TypeAlias = list[str]

MOST_REMEMBERED: Final = 16_384

_PLACEHOLDER: Final = re.compile("%[uc]")


class AclAuthorizer:
    """Implements `broker.access.Authorizer`."""

    def __init__(self, rules: Sequence[AclRule], *, allow_by_default: bool = False) -> None:
        self._publish = [_Rule(rule) for rule in rules if rule.action != "subscribe"]
        self._subscribe = [_Rule(rule) for rule in rules if rule.action != "publish"]
        self._allow_by_default = allow_by_default
        # Asked for every message, and publishers keep to few topics.
        self._remembered = lru_cache(maxsize=MOST_REMEMBERED)(self._may_publish)

    def may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        return self._remembered(user, client_id, topic)

    def _may_publish(self, user: str | None, client_id: str, topic: str) -> bool:
        levels = topic.split("/")
        for rule in self._publish:
            filter_levels = rule.filter_for(user, client_id)
            if filter_levels is not None and covers(filter_levels, levels):
                return rule.allows
        return self._allow_by_default

    def may_subscribe(self, user: str | None, client_id: str, topic_filter: str) -> bool:
        if topic_filter.startswith(SHARE_PREFIX):
            topic_filter = topic_filter[len(SHARE_PREFIX) :].partition("/")[2]
        levels = topic_filter.split("/")
        for rule in self._subscribe:
            filter_levels = rule.filter_for(user, client_id)
            if filter_levels is None:
                continue
            if rule.allows and covers(filter_levels, levels):
                return True
            if not rule.allows and overlap(filter_levels, levels):
                return False
        return self._allow_by_default


class _Rule:
    def __init__(self, rule: AclRule) -> None:
        self.allows = rule.permission == "allow"
        self._topic = rule.topic
        self._levels = rule.topic.split("/")
        self._user = re.compile(translate(rule.user)) if rule.user is not None else None
        self._client = re.compile(translate(rule.client)) if rule.client is not None else None
        self._is_fixed = not _PLACEHOLDER.search(rule.topic)

    def filter_for(self, user: str | None, client_id: str) -> Levels | None:
        """The rule's filter for this client; None if the rule is not about it."""
        if self._user is not None and (user is None or not self._user.match(user)):
            return None
        if self._client is not None and not self._client.match(client_id):
            return None
        if self._is_fixed:
            return self._levels
        if ("%u" in self._topic and not self._may_insert(user)) or (
            "%c" in self._topic and not self._may_insert(client_id)
        ):
            return None
        names = {"%u": user or "", "%c": client_id}
        return _PLACEHOLDER.sub(lambda found: names[found[0]], self._topic).split("/")

    def _may_insert(self, name: str | None) -> bool:
        if name is None or "+" in name or "#" in name:
            return False
        return not self.allows or (name != "" and "/" not in name and not name.startswith("$"))


def covers(filter_levels: Levels, requested: Levels) -> bool:
    """Does the filter match every topic that `requested` (a topic or a filter) matches?"""
    if _hides_dollar(filter_levels, requested):
        return False
    for index, level in enumerate(filter_levels):
        if level == "#":
            return True
        if index == len(requested):
            return False
        wanted = requested[index]
        if wanted == "#":
            # `+/#` covers `#`, for every topic has a first level; deeper down `#` also means the parent.
            return index == 0 and level == "+" and filter_levels[1:] == ["#"]
        if level not in ("+", wanted):
            return False
    return len(filter_levels) == len(requested)


def overlap(one: Levels, other: Levels) -> bool:
    """Is there a topic that both filters match?"""
    if _hides_dollar(one, other) or _hides_dollar(other, one):
        return False
    for left, right in zip(one, other, strict=False):
        if "#" in (left, right):
            return True
        if left != right and "+" not in (left, right):
            return False
    shorter, longer = sorted((one, other), key=len)
    return len(shorter) == len(longer) or longer[len(shorter) :] == ["#"]


def _hides_dollar(filter_levels: Levels, requested: Levels) -> bool:
    """A wildcard in the first level does not match topics that begin with `$` [MQTT-4.7.2-1]."""
    return filter_levels[0] in ("+", "#") and requested[0].startswith("$")
