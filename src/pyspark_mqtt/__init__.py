"""Where Spark looks for `format("mqtt")`."""

from polybus.pipeline.sources.mqtt.source import MqttSource as DefaultSource

__all__ = ["DefaultSource"]
