"""Counters of the whole broker. Per-connection counters live on the link, per-topic ones on the route."""

import msgspec


class Stats(msgspec.Struct):
    connections_accepted: int = 0
    connections_refused: int = 0
    messages_received: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    bytes_sent: int = 0
    dropped_slow: int = 0
    """QoS 0 messages not sent because the subscriber's outbox was full."""
    dropped_queue_full: int = 0
    """QoS 1 and 2 messages not queued because the session's queue was full."""
    dropped_memory: int = 0
    """Messages given up because the broker's memory budget was spent."""
    dropped_expired: int = 0
    dropped_too_large: int = 0
    """Messages larger than their subscriber said it would take."""
    dropped_retained: int = 0
    """Retained messages not kept because the retained limits were reached."""
    dropped_no_session: int = 0
    """QoS 1 and 2 messages whose session ended before they were acknowledged."""
    sessions_expired: int = 0
    ticks: int = 0
