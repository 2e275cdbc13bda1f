"""Where Spark looks for `format("polybus_events")`."""

from polybus.pipeline.sources.events.source import EventsSource as DefaultSource

__all__ = ["DefaultSource"]
