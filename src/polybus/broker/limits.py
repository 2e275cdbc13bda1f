"""Everything a peer can make grow, and how far it may.

The defaults suit one machine with a few thousand clients; operations sets them from `[limits]`.
"""

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """0 means "no limit" only where a field says so."""

    connections: int = 15_000
    sessions: int = 1_000_000
    """Sessions kept in all, connected or not."""
    connect_timeout_s: float = 10.0
    """How long a new connection may take to send its CONNECT."""
    client_id_bytes: int = 1_024
    """Of what a client calls itself: it stands beside everything that is kept of it."""
    packet_size_bytes: int = 16 * 1024 * 1024
    topic_levels: int = 128
    topic_bytes: int = 65_535
    subscriptions_per_session: int = 100_000
    session_expiry_s: int = 7 * 24 * 3600
    """The longest a session outlives its connection, whatever its client asks for."""
    keep_alive_s: int = 0
    """The longest keep alive a client may choose; 0: any."""
    receive_maximum: int = 1_000
    """QoS 1 and 2 messages a client may have unacknowledged towards us."""
    inflight_per_session: int = 1_000
    """QoS 1 and 2 messages we have unacknowledged towards a client, if it allows so many."""
    inflight_bytes_per_session: int = 16 * 1024 * 1024
    """How much those may hold; one message may always be under way, whatever its size."""
    topic_alias_maximum: int = 64
    queued_messages_per_session: int = 100_000
    queued_bytes_per_session: int = 64 * 1024 * 1024
    outbox_bytes_per_connection: int = 4 * 1024 * 1024
    """Unsent bytes past which a connection is slow: QoS 0 is dropped, QoS 1 and 2 wait in its queue."""
    retained_messages: int = 5_000_000
    retained_bytes: int = 1024 * 1024 * 1024
    publish_rate_per_client: float = 0.0
    """Messages a second, with a burst of two seconds' worth; past it the client is read more slowly. 0: any."""
    stored_messages: int = 500
    """Messages, requests and answers that wait for someone; past it victims are chosen (TB-13)."""
    stored_bytes: int = 64 * 1024 * 1024
    requests: int = 200_000
    """Requests under way in all."""
    requests_per_client: int = 10_000
    request_timeout_s: float = 24 * 3600.0
    """The longest a request lives, whatever its requester asks for."""
    request_ends_kept_s: float = 3600.0
    """How long the end of a request waits for a requester that is away."""
    memory_bytes: int = 2 * 1024 * 1024 * 1024
    """Budget of everything that is queued, unsent, unacknowledged, half read, retained or subscribed to;
    past it victims are chosen (`Flow.relieve`)."""
