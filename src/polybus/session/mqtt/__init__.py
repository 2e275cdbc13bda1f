"""MQTT 3.1, 3.1.1 and 5.0: the state machine of one connection."""

from polybus.session.mqtt.link import MqttLink
from polybus.session.mqtt.options import MqttOptions

__all__ = ["MqttLink", "MqttOptions"]
