"""From an address to a bus: the one place that chooses the protocol."""

import secrets
import ssl
from collections.abc import Callable, Iterable, Mapping

from polybus.client.address import Tls, parse_address
from polybus.client.backoff import Backoff
from polybus.client.bus import Bus, as_pairs
from polybus.client.events import BusEvent
from polybus.client.message import Will, payload_bytes
from polybus.client.mqtt_core import MqttCore
from polybus.client.mqtt_settings import MqttSettings
from polybus.client.transport import open_transport
from polybus.errors import UsageError
from polybus.wire.mqtt.packets import NO_PROPERTIES, V5, V311, Properties
from polybus.wire.mqtt.packets import Will as MqttWill


def connect(
    url: str,
    *,
    client_id: str = "",
    user_name: str | None = None,
    password: str | bytes | None = None,
    version: int = 5,
    clean_start: bool = True,
    session_expiry_s: int | None = None,
    keep_alive_s: int = 60,
    will: Will | None = None,
    tls: Tls | ssl.SSLContext | None = None,
    receive_maximum: int = 1000,
    maximum_packet_size: int | None = None,
    user_properties: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    timeout_s: float = 30.0,
    connect_timeout_s: float = 10.0,
    reconnect: Backoff | bool = True,
    on_event: Callable[[BusEvent], None] | None = None,
) -> Bus:
    """A bus at `url`: ``mqtt://``, ``mqtts://``, ``ws://``, ``wss://`` or ``mqtt+unix:///path``.

    Connects when entered or awaited::

        async with polybus.connect("mqtt://127.0.0.1:1883") as bus:
            await bus.publish("greeting", "hello", qos=1)

    - `version`: 5 for MQTT 5.0, 4 for MQTT 3.1.1.
    - `clean_start` False goes on with the session that the broker kept for `client_id`;
      `session_expiry_s` says how long it keeps it after us. By default a session lasts over a break
      in the connection and ends with `disconnect` (MQTT 3.1.1 knows no time: a session is kept if
      `clean_start` is False).
    - `timeout_s` is how long operations wait that name no time of their own, `connect_timeout_s`
      how long one attempt to connect may take.
    - `reconnect`: a `Backoff`, True for the default one, or False: the first loss ends the bus. The
      first connection is tried once.
    - `on_event` is called with what happens to the connection (`polybus.client.events`).

    Raises `UsageError` for arguments that cannot be right.
    """
    address = parse_address(url, tls)
    user_name = address.user_name if user_name is None else user_name
    password = address.password if password is None else password
    if version not in (V5, V311):
        raise UsageError(f"version {version!r}: 5 is MQTT 5.0, 4 is MQTT 3.1.1")
    if version < V5 and user_properties:
        raise UsageError("user_properties need MQTT 5.0")
    if version < V5 and password is not None and user_name is None:
        raise UsageError("MQTT 3.1.1 takes a password only together with a user_name")
    if not client_id and not clean_start:
        raise UsageError("going on with a kept session (clean_start=False) needs a client_id")
    settings = MqttSettings(
        client_id=client_id or ("" if version >= V5 else f"polybus{secrets.token_hex(6)}"),
        version=version,
        clean_start=clean_start,
        session_expiry_s=session_expiry_s,
        keep_alive_s=keep_alive_s,
        user_name=user_name,
        password=password.encode() if isinstance(password, str) else password,
        will=None if will is None else _mqtt_will(will, version),
        receive_maximum=receive_maximum,
        maximum_packet_size=maximum_packet_size,
        user_properties=as_pairs(user_properties),
    )
    default_backoff = Backoff() if reconnect else None
    return Bus(
        MqttCore(settings),
        lambda receiver: open_transport(address, receiver),
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        reconnect=reconnect if isinstance(reconnect, Backoff) else default_backoff,
        on_event=on_event,
    )


def _mqtt_will(will: Will, version: int) -> MqttWill:
    properties = NO_PROPERTIES
    if version >= V5:
        properties = Properties(
            will_delay_s=will.delay_s,
            message_expiry_s=will.message_expiry_s,
            content_type=will.content_type,
            user_properties=will.user_properties,
        )
    elif (
        will.delay_s is not None
        or will.message_expiry_s is not None
        or will.content_type
        or will.user_properties
    ):
        raise UsageError("a will with a delay, an expiry, a content type or user properties needs MQTT 5.0")
    return MqttWill(will.topic, payload_bytes(will.payload), will.qos, will.retain, properties)
