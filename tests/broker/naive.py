"""Matching as section 4.7 of the standard tells it, and strategies for names and filters that meet often."""

from hypothesis import strategies as st


def matches(topic_filter: str, name: str) -> bool:
    """Level by level, by recursion: too slow for a broker and plain enough to believe."""
    if name.startswith("$") and topic_filter[0] in "+#":
        return False
    return _match(topic_filter.split("/"), name.split("/"))


def _match(wanted: list[str], levels: list[str]) -> bool:
    if not wanted:
        return not levels
    if wanted[0] == "#":
        return True
    return bool(levels) and wanted[0] in ("+", levels[0]) and _match(wanted[1:], levels[1:])


_LEVELS = st.sampled_from(["a", "b", "", "$x"])

names = st.lists(_LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
filters = (
    st.builds(
        lambda levels, tail: [*levels, *tail],
        st.lists(_LEVELS | st.just("+"), max_size=4),
        st.sampled_from([[], [], ["#"]]),
    )
    .map("/".join)
    .filter(bool)
)
