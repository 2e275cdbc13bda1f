"""Where Spark looks for `format("polybus")`."""

from polybus.pipeline.sources.polybus.source import PolybusSource as DefaultSource

__all__ = ["DefaultSource"]
