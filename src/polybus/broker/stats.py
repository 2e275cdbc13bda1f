"""Counters of the whole broker. Per-connection counters live on the link, per-topic ones on the route."""

import msgspec

from polybus.broker.lifecycle import RequestState


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
    stored_discarded: int = 0
    """Stored messages, requests and answers deleted to make room for others, or for which there was none."""
    requests_received: int = 0
    requests_answered: int = 0
    requests_failed: int = 0
    requests_timed_out: int = 0
    requests_canceled: int = 0
    requests_not_delivered: int = 0
    """Or their answer not."""
    requests_deleted: int = 0
    answers_rejected: int = 0
    """Answers nobody asked for, or not from this service."""
    sessions_expired: int = 0
    crossed_out: int = 0
    """Messages given to neighbours; one for each neighbour."""
    crossed_in: int = 0
    crossed_twice: int = 0
    """Messages of neighbours that were taken before, and not again."""
    requests_out: int = 0
    requests_in: int = 0
    ticks: int = 0

    def traffic(self) -> int:
        """What clients had to say to each other; it only grows."""
        return self.messages_received + self.requests_received + self.requests_answered

    def count_end(self, state: RequestState) -> None:
        """A request has ended in this state."""
        match state:
            case RequestState.ANSWER_DELIVERED:
                self.requests_answered += 1
            case RequestState.ERROR:
                self.requests_failed += 1
            case RequestState.TIMED_OUT:
                self.requests_timed_out += 1
            case RequestState.CANCELED:
                self.requests_canceled += 1
            case RequestState.DELETED:
                self.requests_deleted += 1
            case RequestState.NOT_DELIVERED | RequestState.ANSWER_NOT_DELIVERED:
                self.requests_not_delivered += 1
            case _:
                raise AssertionError(f"{state.words} is no end")
