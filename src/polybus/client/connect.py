"""From an address to a bus: the one place that chooses the protocol."""

import secrets
import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, get_args

from polybus.client.address import TBUS, Tls, elsewhere, parse_address
from polybus.client.backoff import Backoff
from polybus.client.bus import Bus, as_pairs
from polybus.client.core import Core
from polybus.client.driver import Dial
from polybus.client.events import BusEvent
from polybus.client.message import Will, payload_bytes
from polybus.client.mqtt_core import MqttCore
from polybus.client.mqtt_settings import MqttSettings
from polybus.client.packet_ids import MAX_PACKET_ID
from polybus.client.tbus_core import TbusCore
from polybus.client.tbus_settings import TbusSettings
from polybus.client.transport import open_transport
from polybus.errors import UsageError
from polybus.session.tbus.options import BulkMode
from polybus.wire.mqtt.packets import NO_PROPERTIES, V5, V311, Properties
from polybus.wire.mqtt.packets import Will as MqttWill
from polybus.wire.tbus.codec import encode

RECEIVE_MAXIMUM: Final = 1000


def connect(
    url: str,
    *,
    client_id: str = "",
    token: str | None = None,
    user_name: str | None = None,
    password: str | bytes | None = None,
    bulk: BulkMode | None = None,
    version: int = 5,
    clean_start: bool = True,
    session_expiry_s: int | None = None,
    keep_alive_s: int = 60,
    will: Will | None = None,
    tls: Tls | ssl.SSLContext | None = None,
    receive_maximum: int = RECEIVE_MAXIMUM,
    maximum_packet_size: int | None = None,
    user_properties: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    timeout_s: float = 30.0,
    connect_timeout_s: float = 10.0,
    reconnect: Backoff | bool = True,
    on_event: Callable[[BusEvent], None] | None = None,
) -> Bus:
    """A bus at `url`: ``tbus://``, ``tbuss://`` (TLS), ``tbus+unix:///path``, ``mqtt://``, ``mqtts://``,
    ``ws://``, ``wss://`` or ``mqtt+unix:///path``.

    Connects when entered or awaited::

        async with polybus.connect("tbus://127.0.0.1:5035") as bus:
            answer = await bus.request("triple", "14")

    - `client_id`: without one the broker, or chance, gives us a name.
    - `token` is what the broker asks for: TBus's Token, MQTT's password.
    - `clean_start` False goes on with what the broker kept for `client_id`: on MQTT the session (and
      `session_expiry_s` says how long it keeps it after us), on TBus the requests that may wait. By
      default an MQTT session lasts over a break in the connection and ends with `disconnect` (MQTT 3.1.1
      knows no time: a session is kept if `clean_start` is False).
    - `timeout_s` is how long operations wait that name no time of their own, `connect_timeout_s`
      how long one attempt to connect may take.
    - `reconnect`: a `Backoff`, True for the default one, or False: the first loss ends the bus. The
      first connection is tried once.
    - `on_event` is called with what happens to the connection (`polybus.client.events`).
    - TBus: `bulk` says how messages are gathered: "adaptive" (default: no waiting), "fixed" or "off".
    - MQTT: `version` 5 for MQTT 5.0, 4 for MQTT 3.1.1; `will`, `receive_maximum`,
      `maximum_packet_size`, `user_properties` as in the standard.

    Raises `UsageError` for arguments that cannot be right.
    """
    address = parse_address(url, tls)
    user_name = address.user_name if user_name is None else user_name
    if token is not None and password is not None:
        raise UsageError("token and password are the same thing here: give one of them")
    secret = address.password if token is None and password is None else token if password is None else password
    if not client_id and not clean_start:
        raise UsageError("going on where an earlier run stopped (clean_start=False) needs a client_id")
    core: Core
    if address.scheme.protocol == TBUS:
        _refuse_mqtt_only(
            version=version != V5,
            session_expiry_s=session_expiry_s is not None,
            will=will is not None,
            receive_maximum=receive_maximum != RECEIVE_MAXIMUM,
            maximum_packet_size=maximum_packet_size is not None,
            user_properties=bool(user_properties),
        )
        core = _tbus_core(client_id, clean_start, keep_alive_s, user_name, secret, bulk or "adaptive")
    else:
        if bulk is not None:
            raise UsageError("bulk is for tbus://, MQTT has no bulks: leave it out")
        settings = MqttSettings(
            client_id=client_id or ("" if version >= V5 else f"polybus{secrets.token_hex(6)}"),
            version=version,
            clean_start=clean_start,
            session_expiry_s=session_expiry_s,
            keep_alive_s=keep_alive_s,
            user_name=user_name,
            password=secret.encode() if isinstance(secret, str) else secret,
            will=None if will is None else _mqtt_will(will, version),
            receive_maximum=receive_maximum,
            maximum_packet_size=maximum_packet_size,
            user_properties=as_pairs(user_properties),
            run=secrets.token_hex(8),
        )
        _check_version(settings)
        core = MqttCore(settings)

    def dial_at(place: str) -> Dial:
        return partial(open_transport, elsewhere(address, place))

    default_backoff = Backoff() if reconnect else None
    return Bus(
        core,
        partial(open_transport, address),
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        reconnect=reconnect if isinstance(reconnect, Backoff) else default_backoff,
        on_event=on_event,
        dial_at=dial_at,
    )


def _tbus_core(
    client_id: str,
    clean_start: bool,
    keep_alive_s: int,
    user_name: str | None,
    secret: str | bytes | None,
    bulk: BulkMode,
) -> TbusCore:
    if bulk not in get_args(BulkMode):
        raise UsageError(f"bulk {bulk!r} is none of {', '.join(get_args(BulkMode))}")
    settings = TbusSettings(
        client_id=client_id or f"polybus{secrets.token_hex(6)}",
        clean_start=clean_start,
        keep_alive_s=keep_alive_s,
        user_name=user_name,
        token=_text(secret),
        bulk=bulk,
        last_id=0 if clean_start else secrets.randbelow(MAX_PACKET_ID),
    )
    encode(settings.connect_packet(clean_start=clean_start))  # for its errors only
    return TbusCore(settings)


def _text(secret: str | bytes | None) -> str | None:
    try:
        return secret.decode() if isinstance(secret, bytes) else secret
    except UnicodeDecodeError:
        raise UsageError("a token of TBus is text: these bytes are not UTF-8") from None


def _refuse_mqtt_only(**given: bool) -> None:
    names = [name for name, is_given in given.items() if is_given]
    if names:
        raise UsageError(f"{', '.join(names)}: TBus knows nothing of the kind; leave it out or use mqtt://")


def _check_version(settings: MqttSettings) -> None:
    if settings.version not in (V5, V311):
        raise UsageError(f"version {settings.version!r}: 5 is MQTT 5.0, 4 is MQTT 3.1.1")
    if settings.version < V5 and settings.user_properties:
        raise UsageError("user_properties need MQTT 5.0")
    if settings.version < V5 and settings.password is not None and settings.user_name is None:
        raise UsageError("MQTT 3.1.1 takes a password only together with a user_name")


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
