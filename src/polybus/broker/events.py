"""The events of a bus that someone may want to count, search or measure (TB-16, section 2.1.4).

Each has one name, one level and the same field names everywhere, and goes through the logger
`polybus.events`: to people as a log line, to programs as one JSON object a line (`server.event_file`).

    client_id    whose deed it is
    topic        topic name, or topic filter of a subscription
    request      number of the request, unique in this run of the broker; with `requester`, `packet_id`
    service      client id of whoever had the request when it ended
    duration_s   since the connection, the storing or the request began
    reason       why, for people
    payload_bytes  of a message

On the path of every message ask `are_wanted` first: building the fields costs more than the question.
"""

import logging
from typing import Final

import msgspec

log = logging.getLogger("polybus.events")

TRACE: Final = 5
MAX_CHARACTERS: Final = 256
"""Of a field."""
_ADDRESS: Final = frozenset("0123456789[")
"""How the address begins that is behind the mark of a neighbour's id."""


class Event(msgspec.Struct, frozen=True):
    name: str
    level: int


CLIENT_CONNECTED: Final = Event("client connected", logging.INFO)
CONNECTION_REFUSED: Final = Event("connection refused", logging.WARNING)
CONNECTION_FAILED: Final = Event("connection ended", logging.WARNING)
"""The broker ended it for what the client did."""
CLIENT_DISCONNECTED: Final = Event("client disconnected", logging.INFO)
AUTHENTICATED: Final = Event("authentication succeeded", logging.DEBUG)
NOT_AUTHENTICATED: Final = Event("authentication failed", logging.WARNING)
NOT_AUTHORIZED: Final = Event("not authorized", logging.WARNING)

SUBSCRIBED: Final = Event("subscribed", logging.DEBUG)
NOT_SUBSCRIBED: Final = Event("subscription refused", logging.WARNING)
UNSUBSCRIBED: Final = Event("unsubscribed", logging.DEBUG)
NOT_UNSUBSCRIBED: Final = Event("unsubscription refused", logging.INFO)

MESSAGE_RECEIVED: Final = Event("message received", TRACE)
MESSAGE_DELIVERED: Final = Event("message delivered", TRACE)
MESSAGE_STORED: Final = Event("message stored", logging.DEBUG)
MESSAGE_RESTORED: Final = Event("message restored", logging.DEBUG)
MESSAGE_EXPIRED: Final = Event("message expired", logging.DEBUG)
MESSAGE_DISCARDED: Final = Event("message discarded", logging.WARNING)
"""For lack of room."""

REQUEST_RECEIVED: Final = Event("request received", logging.DEBUG)
REQUEST_STORED: Final = Event("request stored", logging.DEBUG)
REQUEST_RESTORED: Final = Event("request restored", logging.DEBUG)
REQUEST_DELIVERED: Final = Event("request delivered", logging.DEBUG)
REQUEST_CANCELED: Final = Event("request canceled", logging.INFO)
REQUEST_TIMED_OUT: Final = Event("request timed out", logging.INFO)
REQUEST_FAILED: Final = Event("request failed", logging.INFO)
REQUEST_NOT_DELIVERED: Final = Event("request not delivered", logging.INFO)
REQUEST_DISCARDED: Final = Event("request discarded", logging.WARNING)
"""Deleted from storage for lack of room."""
END_LOST: Final = Event("end lost", logging.WARNING)
"""Of a request whose requester is away: there was no room to keep the news for it."""
ANSWER_RECEIVED: Final = Event("answer received", logging.DEBUG)
ANSWER_STORED: Final = Event("answer stored", logging.DEBUG)
ANSWER_RESTORED: Final = Event("answer restored", logging.DEBUG)
ANSWER_DELIVERED: Final = Event("answer delivered", logging.DEBUG)
ANSWER_NOT_DELIVERED: Final = Event("answer not delivered", logging.INFO)
ANSWER_REJECTED: Final = Event("answer rejected", logging.WARNING)
"""Nobody asked for it, or not from this service."""

NEIGHBOR_CONNECTED: Final = Event("neighbor connected", logging.INFO)
NEIGHBOR_LOST: Final = Event("neighbor lost", logging.WARNING)
NEIGHBOR_REFUSED: Final = Event("neighbor refused", logging.WARNING)
"""By this broker, or this broker by it."""
NEIGHBOR_UNREACHABLE: Final = Event("neighbor not reached", logging.WARNING)
"""Told once; it is tried again and again."""
NEIGHBOR_FORGOTTEN: Final = Event("neighbor forgotten", logging.WARNING)

STORAGE_LIMIT_CHANGED: Final = Event("storage limit changed", logging.INFO)


def emit(event: Event, **fields: object) -> None:
    """Fields that are None are left out."""
    if log.isEnabledFor(event.level):
        said = {name: _cut(value) for name, value in fields.items() if value is not None}
        log.log(event.level, event.name, extra={"fields": said})


def _cut(value: object) -> object:
    """What a peer wrote may be long; an event is not. A neighbour's id has a mark that is none of its name."""
    if not isinstance(value, str):
        return value
    if value.startswith("\0") and value[1:2] in _ADDRESS:
        value = value[1:]
    return f"{value[:MAX_CHARACTERS]}…" if len(value) > MAX_CHARACTERS else value


def are_wanted(event: Event) -> bool:
    return log.isEnabledFor(event.level)
