"""What a CONNECT asks for and what it gets: pure functions from packet and limits to an agreement."""

import msgspec

from polybus.broker.limits import Limits
from polybus.broker.message import Message
from polybus.broker.sessions import Will
from polybus.broker.topics import InvalidTopic, check_topic_name
from polybus.errors import PeerError
from polybus.session.mqtt import requests
from polybus.session.mqtt.encoding import message_properties
from polybus.session.mqtt.options import MqttOptions
from polybus.wire.mqtt.packets import V5, Connect, ConnectReturnCode, Properties, ReasonCode

NEVER_EXPIRES = 0xFFFF_FFFF

RETURN_CODES = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: ConnectReturnCode.IDENTIFIER_REJECTED,
    ReasonCode.SERVER_UNAVAILABLE: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.SERVER_BUSY: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.QUOTA_EXCEEDED: ConnectReturnCode.SERVER_UNAVAILABLE,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED: ConnectReturnCode.NOT_AUTHORIZED,
}
"""5.0's reason codes in the words of 3.1.1. A refusal without a return code is a close in silence."""


class Agreement(msgspec.Struct, frozen=True):
    """What both sides will keep to."""

    keep_alive_s: int
    expiry_s: float
    will: Will | None
    window: int
    """Deliveries the client takes unacknowledged."""
    max_packet_size: int | None
    """The largest packet the client takes."""
    max_aliases: int
    """Topic aliases the client takes."""
    properties: Properties
    """What the CONNACK tells a 5.0 client."""


def agree(connect: Connect, client_id: str, limits: Limits, options: MqttOptions) -> Agreement:
    """Raises PeerError for a will that cannot be published."""
    asked = connect.properties
    keep_alive_s = connect.keep_alive_s
    if limits.keep_alive_s and not 0 < keep_alive_s <= limits.keep_alive_s:
        keep_alive_s = limits.keep_alive_s
    if connect.version == V5:
        wanted_s = asked.session_expiry_s or 0
        expiry_s = limits.session_expiry_s if wanted_s == NEVER_EXPIRES else wanted_s
        expiry_s = min(expiry_s, limits.session_expiry_s)
    else:
        wanted_s = expiry_s = 0 if connect.clean_start else limits.session_expiry_s
    tells_response = bool(asked.request_response_information) and bool(options.response_information)
    properties = Properties(
        session_expiry_s=expiry_s if expiry_s != wanted_s else None,
        receive_maximum=limits.receive_maximum,
        maximum_packet_size=limits.packet_size_bytes,
        assigned_client_id=client_id if not connect.client_id else None,
        topic_alias_maximum=limits.topic_alias_maximum or None,
        server_keep_alive_s=keep_alive_s if keep_alive_s != connect.keep_alive_s else None,
        response_information=options.response_information if tells_response else None,
    )
    return Agreement(
        keep_alive_s=keep_alive_s if connect.version == V5 else connect.keep_alive_s,
        expiry_s=float(expiry_s),
        will=_will(connect, client_id, limits),
        window=asked.receive_maximum or 65_535,
        max_packet_size=asked.maximum_packet_size,
        max_aliases=asked.topic_alias_maximum or 0,
        properties=properties,
    )


def _will(connect: Connect, client_id: str, limits: Limits) -> Will | None:
    will = connect.will
    if will is None:
        return None
    try:
        check_topic_name(will.topic, limits.topic_levels, limits.topic_bytes)
    except InvalidTopic as error:
        raise PeerError(ReasonCode.TOPIC_NAME_INVALID, f"will: {error}", "MQTT-3.1.3-11") from error
    wishes = _wishes(will.properties)
    message = Message(
        will.topic,
        will.payload,
        will.qos,
        will.retain,
        wishes.priority,
        properties=message_properties(will.properties),
        origin=client_id,
        waits=wishes.waiting,
    )
    return Will(message, will.properties.will_delay_s or 0, will.properties.message_expiry_s)


def _wishes(said: Properties) -> requests.Wishes:
    try:
        wishes = requests.wishes(said)
    except requests.Unwelcome as error:
        raise PeerError(error.reason_code, f"will: {error.text}", "MQ-05") from error
    if wishes.managed or wishes.cancel:
        raise PeerError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "a will cannot be a request", "MQ-05")
    return wishes
