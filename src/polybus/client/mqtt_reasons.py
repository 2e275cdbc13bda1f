"""MQTT reason codes in words, and which of them make another attempt pointless."""

from collections.abc import Mapping
from typing import Final

from polybus.wire.mqtt.packets import ConnectReturnCode, Properties, ReasonCode

# 3.1.1's refusals told in 5.0's codes, so that an application has one set to look at.
CONNECT_RETURN_CODES: Final[Mapping[int, ReasonCode]] = {
    ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ConnectReturnCode.IDENTIFIER_REJECTED: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ConnectReturnCode.SERVER_UNAVAILABLE: ReasonCode.SERVER_UNAVAILABLE,
    ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ConnectReturnCode.NOT_AUTHORIZED: ReasonCode.NOT_AUTHORIZED,
}

# Trying again would end the same way, or (taken over) start a tug of war between two clients.
FINAL_REASONS: Final = frozenset(
    {
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BANNED,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
        ReasonCode.SESSION_TAKEN_OVER,
        ReasonCode.RETAIN_NOT_SUPPORTED,
        ReasonCode.QOS_NOT_SUPPORTED,
        ReasonCode.USE_ANOTHER_SERVER,
        ReasonCode.SERVER_MOVED,
    }
)


def is_refusal(reason_code: int) -> bool:
    return reason_code >= 0x80


def describe_reason(reason_code: int, properties: Properties) -> str:
    """`not authorized (0x87)`, with the broker's own words where it gave some."""
    try:
        name = ReasonCode(reason_code).name.replace("_", " ").lower()
    except ValueError:
        name = "unknown reason"
    text = f"{name} (0x{reason_code:02x})"
    if properties.reason_string:
        text += f", {properties.reason_string}"
    if properties.server_reference:
        text += f", the broker names {properties.server_reference}"
    return text
