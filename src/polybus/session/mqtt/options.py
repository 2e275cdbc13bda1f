"""What an operator chooses about MQTT itself, beside the limits."""

import msgspec


class MqttOptions(msgspec.Struct, frozen=True):
    allow_zero_length_client_id: bool = True
    response_information: str = ""
    """Told to 5.0 clients that ask for it; empty: not told."""
    server_reference: str = ""
    """Where clients should go when this broker stops or is full; empty: not told."""
