"""What a broker announced in its CONNACK that it does and does not take."""

from dataclasses import dataclass

from polybus.client.errors import PublishRefused, SubscribeRefused
from polybus.client.message import Message, SubscribeOptions
from polybus.client.mqtt_reasons import describe_reason
from polybus.wire.mqtt.packets import NO_PROPERTIES, Properties, ReasonCode


@dataclass(frozen=True)
class ServerLimits:
    """The defaults are what MQTT 5.0 prescribes for an absent property, and right for 3.1.1."""

    receive_maximum: int = 0xFFFF
    maximum_packet_size: int | None = None
    maximum_qos: int = 2
    retain_available: bool = True
    wildcard_subscription_available: bool = True
    shared_subscription_available: bool = True
    subscription_identifiers_available: bool = True

    @classmethod
    def announced(cls, properties: Properties) -> "ServerLimits":
        values = {name: getattr(properties, name) for name in cls.__dataclass_fields__}
        return cls(**{name: value for name, value in values.items() if value is not None})

    def check_publish(self, message: Message, frame_size: int) -> None:
        """Raises `PublishRefused` for what the broker would not take [MQTT-3.2.2-11, -14, -15]."""
        if message.qos > self.maximum_qos:
            _refuse_publish(message.topic, ReasonCode.QOS_NOT_SUPPORTED)
        if message.retain and not self.retain_available:
            _refuse_publish(message.topic, ReasonCode.RETAIN_NOT_SUPPORTED)
        if self.maximum_packet_size is not None and frame_size > self.maximum_packet_size:
            _refuse_publish(message.topic, ReasonCode.PACKET_TOO_LARGE)

    def check_subscribe(self, options: SubscribeOptions) -> None:
        topic_filter = options.topic_filter
        if not self.shared_subscription_available and topic_filter.startswith("$share/"):
            _refuse_subscribe(topic_filter, ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED)
        if not self.wildcard_subscription_available and ("+" in topic_filter or "#" in topic_filter):
            _refuse_subscribe(topic_filter, ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED)


def _refuse_publish(topic: str, reason_code: ReasonCode) -> None:
    raise PublishRefused(topic, reason_code, describe_reason(reason_code, NO_PROPERTIES))


def _refuse_subscribe(topic_filter: str, reason_code: ReasonCode) -> None:
    raise SubscribeRefused(topic_filter, reason_code, describe_reason(reason_code, NO_PROPERTIES))
