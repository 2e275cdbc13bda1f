"""`$SYS` topics: the broker's own figures as retained messages, for any MQTT client to read."""

import polybus
from polybus.broker.broker import Broker
from polybus.broker.message import Message


class SysTopics:
    """Publishes what changed since the last time."""

    def __init__(self, broker: Broker, now: float) -> None:
        self._broker = broker
        self._started_at = now
        self._due_at = now
        self._published: dict[str, str] = {}

    def publish(self, now: float, interval_s: float) -> None:
        """Publish if the interval has passed; an interval of 0 publishes nothing."""
        if not interval_s or now < self._due_at:
            return
        self._due_at = now + interval_s
        for name, value in self._figures(now).items():
            if self._published.get(name) != value:
                self._published[name] = value
                topic = f"$SYS/broker/{name}"
                message = Message(topic, value.encode(), retain=True)
                self._broker.publish(self._broker.subscriptions.route_of(topic), message)
        self._broker.stir()

    def _figures(self, now: float) -> dict[str, str]:
        broker = self._broker
        stats = broker.stats
        clients = len(broker.registry.sessions) - len(broker.mesh.sessions)
        links = [s.link for s in broker.registry.sessions.values() if s.link is not None]
        dropped = (
            stats.dropped_slow
            + stats.dropped_queue_full
            + stats.dropped_memory
            + stats.dropped_expired
            + stats.dropped_too_large
            + stats.dropped_no_session
            + stats.stored_discarded
        )
        figures: dict[str, object] = {
            "version": f"polybus {polybus.__version__}",
            "uptime": f"{int(now - self._started_at)} seconds",
            "clients/connected": broker.registry.connected,
            "clients/disconnected": clients - broker.registry.connected,
            "clients/total": clients,
            "clients/expired": stats.sessions_expired,
            "subscriptions/count": broker.subscriptions.count,
            "retained messages/count": broker.retained.count,
            "retained messages/bytes": broker.retained.size_bytes,
            "publish/messages/received": stats.messages_received,
            "publish/messages/sent": stats.messages_sent + sum(link.messages_out for link in links),
            "publish/messages/dropped": dropped,
            "bytes/received": stats.bytes_received,
            "bytes/sent": stats.bytes_sent + sum(link.bytes_out for link in links),
            "storage/messages": broker.storage.count,
            "storage/bytes": broker.storage.size_bytes,
            "storage/discarded": stats.stored_discarded,
            "requests/under way": broker.requests.count,
            "requests/received": stats.requests_received,
            "requests/answered": stats.requests_answered,
            "requests/failed": stats.requests_failed,
            "requests/timed out": stats.requests_timed_out,
            "requests/canceled": stats.requests_canceled,
            "requests/not delivered": stats.requests_not_delivered,
            "requests/deleted": stats.requests_deleted,
            "requests/answers rejected": stats.answers_rejected,
            "memory/budgeted bytes": broker.memory_bytes(),
        }
        neighbors = broker.mesh.sessions
        if neighbors:
            figures |= {
                "neighbors/linked": sum(session.link is not None for session in neighbors),
                "neighbors/known": len(neighbors),
                "neighbors/messages/sent": stats.crossed_out,
                "neighbors/messages/received": stats.crossed_in,
                "neighbors/messages/received twice": stats.crossed_twice,
                "neighbors/messages/waiting": sum(session.load() for session in neighbors),
                "neighbors/messages/dropped": sum(session.dropped for session in neighbors),
                "neighbors/requests/sent": stats.requests_out,
                "neighbors/requests/received": stats.requests_in,
            }
        return {name: str(value) for name, value in figures.items()}
