"""The rules of the MQTT standards that one packet can break by itself, and what to answer.

A rule is cited by the id of its statement in the version that was spoken; MQTT 3.1 has no ids and is
cited by those of 3.1.1. A statement without an id is cited by its section (``MQTT-2.2.2.2``).

The same table serves both directions: `decode` turns a broken rule into a `PeerError`, `encode` into
a `UsageError`, so that we never send what we would refuse.
"""

from typing import Final

import msgspec

from polybus.errors import PeerError, UsageError
from polybus.wire.mqtt.packets import V5, ReasonCode

_MALFORMED: Final = ReasonCode.MALFORMED_PACKET
_PROTOCOL: Final = ReasonCode.PROTOCOL_ERROR


class Rule(msgspec.Struct, frozen=True):
    """`text` says what was wrong; `v311` is empty where both standards use the same id."""

    text: str
    reason_code: int
    v5: str
    v311: str = ""

    def cited(self, version: int) -> str:
        """The id of this rule in the standard of `version`."""
        return self.v5 if version >= V5 or not self.v311 else self.v311

    def broken_by_peer(self, version: int) -> PeerError:
        return PeerError(self.reason_code, self.text, self.cited(version))

    def broken_by_caller(self, version: int) -> UsageError:
        return UsageError(f"{self.text} [{self.cited(version)}]")


# Data representation
STRING_NOT_UTF8: Final = Rule("string is not well-formed UTF-8", _MALFORMED, "MQTT-1.5.4-1", "MQTT-1.5.3-1")
STRING_HAS_NULL: Final = Rule("string contains U+0000", _MALFORMED, "MQTT-1.5.4-2", "MQTT-1.5.3-2")
VARINT_TOO_LONG: Final = Rule("variable byte integer is longer than 4 bytes", _MALFORMED, "MQTT-1.5.5")
VARINT_NOT_MINIMAL: Final = Rule(
    "variable byte integer has more bytes than it needs", _MALFORMED, "MQTT-1.5.5-1"
)
PACKET_CUT_SHORT: Final = Rule("packet ends within a field", _MALFORMED, "MQTT-4.13.1-1", "MQTT-4.8.0-1")
PACKET_HAS_MORE: Final = Rule(
    "packet has bytes after its last field", _MALFORMED, "MQTT-4.13.1-1", "MQTT-4.8.0-1"
)

# Fixed header
PACKET_TOO_LARGE: Final = Rule(
    "packet is larger than the maximum packet size", ReasonCode.PACKET_TOO_LARGE, "MQTT-3.2.2-15"
)
TYPE_RESERVED: Final = Rule("packet type is reserved", _MALFORMED, "MQTT-2.1.2", "MQTT-2.2.1")
FLAGS_RESERVED: Final = Rule(
    "reserved flags of the fixed header are not as listed", _MALFORMED, "MQTT-2.1.3-1", "MQTT-2.2.2-2"
)
PUBREL_FLAGS: Final = Rule("PUBREL flags are not 0010", _MALFORMED, "MQTT-3.6.1-1")
SUBSCRIBE_FLAGS: Final = Rule("SUBSCRIBE flags are not 0010", _MALFORMED, "MQTT-3.8.1-1")
UNSUBSCRIBE_FLAGS: Final = Rule("UNSUBSCRIBE flags are not 0010", _MALFORMED, "MQTT-3.10.1-1")
DISCONNECT_FLAGS: Final = Rule("DISCONNECT flags are not 0000", _MALFORMED, "MQTT-3.14.1-1")
AUTH_FLAGS: Final = Rule("AUTH flags are not 0000", _MALFORMED, "MQTT-3.15.1-1")

# Packet identifiers
PACKET_ID_ZERO: Final = Rule("packet identifier is zero", _PROTOCOL, "MQTT-2.2.1-3", "MQTT-2.3.1-1")
PUBLISH_ACK_ID_ZERO: Final = Rule(
    "acknowledged packet identifier is zero", _PROTOCOL, "MQTT-2.2.1-5", "MQTT-2.3.1-6"
)
SUBSCRIBE_ACK_ID_ZERO: Final = Rule(
    "acknowledged packet identifier is zero", _PROTOCOL, "MQTT-2.2.1-6", "MQTT-2.3.1-7"
)

# Properties: what is not here is cited by the section that defines the property
PROPERTY_UNKNOWN: Final = Rule("unknown property", _MALFORMED, "MQTT-2.2.2.2")
PROPERTY_NOT_ALLOWED: Final = Rule("property is not allowed in this packet", _MALFORMED, "MQTT-2.2.2.2")
TOPIC_ALIAS_ZERO: Final = Rule("topic alias is zero", ReasonCode.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8")
RESPONSE_TOPIC_EMPTY: Final = Rule("response topic is empty", _PROTOCOL, "MQTT-4.7.3-1")
RESPONSE_TOPIC_WILDCARD: Final = Rule("response topic contains a wildcard", _PROTOCOL, "MQTT-3.3.2-14")

# CONNECT
PROTOCOL_NAME: Final = Rule("protocol name is unknown", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "MQTT-3.1.2-1")
PROTOCOL_LEVEL: Final = Rule(
    "protocol version is not supported", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, "MQTT-3.1.2-2"
)
CONNECT_FORMAT: Final = Rule("CONNECT does not have its format", _MALFORMED, "MQTT-3.1.4-1")
CONNECT_FLAG_RESERVED: Final = Rule("reserved CONNECT flag is set", _MALFORMED, "MQTT-3.1.2-3")
WILL_QOS_WITHOUT_WILL: Final = Rule(
    "will QoS is set without a will", _MALFORMED, "MQTT-3.1.2-11", "MQTT-3.1.2-13"
)
WILL_QOS_INVALID: Final = Rule("will QoS is not 0, 1 or 2", _MALFORMED, "MQTT-3.1.2-12", "MQTT-3.1.2-14")
WILL_RETAIN_WITHOUT_WILL: Final = Rule(
    "will retain is set without a will", _MALFORMED, "MQTT-3.1.2-13", "MQTT-3.1.2-15"
)
WILL_MISSING: Final = Rule("will fields are missing", _MALFORMED, "MQTT-3.1.2-9")
WILL_TOPIC_EMPTY: Final = Rule("will topic is empty", ReasonCode.TOPIC_NAME_INVALID, "MQTT-4.7.3-1")
WILL_TOPIC_WILDCARD: Final = Rule(
    "will topic contains a wildcard", ReasonCode.TOPIC_NAME_INVALID, "MQTT-4.7.0-1", "MQTT-4.7.1-1"
)
CLIENT_ID_MISSING: Final = Rule("client identifier is missing", _MALFORMED, "MQTT-3.1.3-3")
USER_NAME_MISSING: Final = Rule("user name is missing", _MALFORMED, "MQTT-3.1.2-17", "MQTT-3.1.2-19")
PASSWORD_MISSING: Final = Rule("password is missing", _MALFORMED, "MQTT-3.1.2-19", "MQTT-3.1.2-21")
PASSWORD_WITHOUT_USER_NAME: Final = Rule("password without a user name", _MALFORMED, "MQTT-3.1.2-22")
AUTHENTICATION_DATA_ALONE: Final = Rule(
    "authentication data without an authentication method", _PROTOCOL, "MQTT-3.1.2.11.10"
)

# CONNACK
CONNACK_FLAGS: Final = Rule("reserved CONNACK flags are set", _MALFORMED, "MQTT-3.2.2-1", "MQTT-3.2.2.1")
CONNACK_SESSION_PRESENT: Final = Rule("session present in a refusal", _PROTOCOL, "MQTT-3.2.2-6", "MQTT-3.2.2-4")
CONNACK_REASON: Final = Rule("reason code is not one of CONNACK", _PROTOCOL, "MQTT-3.2.2-8", "MQTT-3.2.2-6")

# PUBLISH and its acknowledgements
PUBLISH_QOS_INVALID: Final = Rule("QoS is not 0, 1 or 2", _MALFORMED, "MQTT-3.3.1-4")
PUBLISH_DUP_QOS_0: Final = Rule("DUP is set with QoS 0", _PROTOCOL, "MQTT-3.3.1-2")
TOPIC_EMPTY: Final = Rule("topic name is empty", _PROTOCOL, "MQTT-4.7.3-1")
TOPIC_WILDCARD: Final = Rule("topic name contains a wildcard", ReasonCode.TOPIC_NAME_INVALID, "MQTT-3.3.2-2")
PUBACK_REASON: Final = Rule("reason code is not one of PUBACK", _PROTOCOL, "MQTT-3.4.2-1")
PUBREC_REASON: Final = Rule("reason code is not one of PUBREC", _PROTOCOL, "MQTT-3.5.2-1")
PUBREL_REASON: Final = Rule("reason code is not one of PUBREL", _PROTOCOL, "MQTT-3.6.2-1")
PUBCOMP_REASON: Final = Rule("reason code is not one of PUBCOMP", _PROTOCOL, "MQTT-3.7.2-1")

# SUBSCRIBE, UNSUBSCRIBE and their acknowledgements
SUBSCRIBE_EMPTY: Final = Rule("SUBSCRIBE has no topic filter", _PROTOCOL, "MQTT-3.8.3-2", "MQTT-3.8.3-3")
UNSUBSCRIBE_EMPTY: Final = Rule("UNSUBSCRIBE has no topic filter", _PROTOCOL, "MQTT-3.10.3-2")
TOPIC_FILTER_EMPTY: Final = Rule("topic filter is empty", _PROTOCOL, "MQTT-4.7.3-1")
OPTIONS_RESERVED: Final = Rule(
    "reserved subscription options are set", _MALFORMED, "MQTT-3.8.3-5", "MQTT-3.8.3-4"
)
OPTIONS_QOS: Final = Rule("requested QoS is not 0, 1 or 2", _PROTOCOL, "MQTT-3.8.3.1", "MQTT-3.8.3-4")
OPTIONS_RETAIN_HANDLING: Final = Rule("retain handling is not 0, 1 or 2", _PROTOCOL, "MQTT-3.8.3.1")
OPTIONS_NO_LOCAL_SHARED: Final = Rule("no local on a shared subscription", _PROTOCOL, "MQTT-3.8.3-4")
SUBACK_EMPTY: Final = Rule("SUBACK has no reason code", _PROTOCOL, "MQTT-3.8.4-6", "MQTT-3.8.4-5")
SUBACK_REASON: Final = Rule("reason code is not one of SUBACK", _PROTOCOL, "MQTT-3.9.3-2")
UNSUBACK_REASON: Final = Rule("reason code is not one of UNSUBACK", _PROTOCOL, "MQTT-3.11.3-2")
UNSUBACK_EMPTY: Final = Rule("UNSUBACK has no reason code", _PROTOCOL, "MQTT-3.11.3-2")

# DISCONNECT and AUTH
DISCONNECT_REASON: Final = Rule("reason code is not one of DISCONNECT", _PROTOCOL, "MQTT-3.14.2-1")
AUTH_REASON: Final = Rule("reason code is not one of AUTH", _PROTOCOL, "MQTT-3.15.2-1")
AUTH_METHOD_MISSING: Final = Rule("AUTH without an authentication method", _PROTOCOL, "MQTT-3.15.2.2.2")
