"""Times that Spark hands over: without a zone, in that of this process, whatever the session's is."""

from datetime import UTC, datetime


def in_utc(collected: datetime) -> datetime:
    return collected.astimezone(UTC)
