"""The life of a request as a table (figure 4.1 of the Testos Bus document, TB-07).

The table drives the code (`advance`), the exhaustive test, and the diagram in docs/requests.md
(`diagram`). What it does not list cannot happen: asking for it is an error of our own.
"""

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import Final


class RequestState(IntEnum):
    NEW = 0
    STORED = auto()
    DELIVERED = auto()
    ANSWERED = auto()
    ANSWER_STORED = auto()
    # The ends:
    ANSWER_DELIVERED = auto()
    ANSWER_NOT_DELIVERED = auto()
    NOT_DELIVERED = auto()
    CANCELED = auto()
    TIMED_OUT = auto()
    ERROR = auto()
    DELETED = auto()

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", " ")


class RequestEvent(IntEnum):
    STORE = 0
    """Nobody can take it now, and it may wait."""
    DELIVER = auto()
    """To a service instance, or the answer to the requester; out of storage this is restoring."""
    ANSWER = auto()
    GIVE_UP = auto()
    """Nobody can take it, and it may not wait."""
    CANCEL = auto()
    EXPIRE = auto()
    FAIL = auto()
    """The service raised an error, or the broker could not do its part."""
    DELETE = auto()
    """There was no room in storage."""

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", " ")


_S = RequestState
_E = RequestEvent

TRANSITIONS: Final[Mapping[RequestState, Mapping[RequestEvent, RequestState]]] = {
    _S.NEW: {
        _E.STORE: _S.STORED,
        _E.DELIVER: _S.DELIVERED,
        _E.GIVE_UP: _S.NOT_DELIVERED,
        _E.CANCEL: _S.CANCELED,
        _E.EXPIRE: _S.TIMED_OUT,
        _E.FAIL: _S.ERROR,
        _E.DELETE: _S.DELETED,
    },
    _S.STORED: {
        _E.DELIVER: _S.DELIVERED,
        _E.GIVE_UP: _S.NOT_DELIVERED,
        _E.CANCEL: _S.CANCELED,
        _E.EXPIRE: _S.TIMED_OUT,
        _E.FAIL: _S.ERROR,
        _E.DELETE: _S.DELETED,
    },
    _S.DELIVERED: {
        _E.STORE: _S.STORED,  # the instance went away, and no other is free
        _E.DELIVER: _S.DELIVERED,  # to another instance
        _E.ANSWER: _S.ANSWERED,
        _E.GIVE_UP: _S.NOT_DELIVERED,
        _E.CANCEL: _S.CANCELED,
        _E.EXPIRE: _S.TIMED_OUT,
        _E.FAIL: _S.ERROR,
        _E.DELETE: _S.DELETED,  # it should have been stored again, but there was no room
    },
    _S.ANSWERED: {
        _E.STORE: _S.ANSWER_STORED,
        _E.DELIVER: _S.ANSWER_DELIVERED,
        _E.GIVE_UP: _S.ANSWER_NOT_DELIVERED,
        _E.CANCEL: _S.CANCELED,
        _E.EXPIRE: _S.ANSWER_NOT_DELIVERED,
        _E.FAIL: _S.ERROR,
        _E.DELETE: _S.DELETED,
    },
    _S.ANSWER_STORED: {
        _E.DELIVER: _S.ANSWER_DELIVERED,
        _E.GIVE_UP: _S.ANSWER_NOT_DELIVERED,
        _E.CANCEL: _S.CANCELED,
        _E.EXPIRE: _S.ANSWER_NOT_DELIVERED,
        _E.FAIL: _S.ERROR,
        _E.DELETE: _S.DELETED,
    },
    _S.ANSWER_DELIVERED: {},
    _S.ANSWER_NOT_DELIVERED: {},
    _S.NOT_DELIVERED: {},
    _S.CANCELED: {},
    _S.TIMED_OUT: {},
    _S.ERROR: {},
    _S.DELETED: {},
}

ENDS: Final = frozenset(state for state, exits in TRANSITIONS.items() if not exits)

_NEXT: Final = [[TRANSITIONS[state].get(event) for event in RequestEvent] for state in RequestState]


class ImpossibleEvent(AssertionError):
    """The broker asked for something the life of a request does not have: a bug."""


def advance(state: RequestState, event: RequestEvent) -> RequestState:
    """The state after `event`. Raises `ImpossibleEvent`."""
    following = _NEXT[state][event]
    if following is None:
        raise ImpossibleEvent(f"a request that is {state.words} cannot {event.words}")
    return following


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    names = {state: state.name.lower() for state in RequestState}
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {names[_S.NEW]}"]
    lines += [f'    state "{state.words}" as {names[state]}' for state in RequestState]
    lines += [
        f"    {names[state]} --> {names[following]}: {event.words}"
        for state, exits in TRANSITIONS.items()
        for event, following in exits.items()
    ]
    lines += [f"    {names[state]} --> [*]" for state in RequestState if state in ENDS]
    return "\n".join(lines)
