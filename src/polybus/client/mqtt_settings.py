"""What an MQTT client says in CONNECT."""

from dataclasses import dataclass
from typing import Final

from polybus.wire.mqtt.packets import NO_PROPERTIES, V5, Connect, Properties, Will

KEPT_OVER_BREAKS_S: Final = 60
"""How long the broker keeps the session of a client that did not ask for a time of its own."""


@dataclass(frozen=True)
class MqttSettings:
    """`session_expiry_s` None: the session is kept over a break in the connection and given up with
    `disconnect` (3.1.1: as `clean_start` says)."""

    client_id: str = ""
    version: int = V5
    clean_start: bool = True
    session_expiry_s: int | None = None
    keep_alive_s: int = 60
    user_name: str | None = None
    password: bytes | None = None
    will: Will | None = None
    receive_maximum: int = 1000
    enforces_receive_maximum: bool = True
    """False: take what a broker sends beyond it. Mosquitto 2.0 does, when acknowledgements come in groups."""
    maximum_packet_size: int | None = None
    topic_alias_maximum: int = 64
    user_properties: tuple[tuple[str, str], ...] = ()
    run: str = "0"
    """Tells this run of a client from all others: in the Correlation Data of its requests, and in the
    topic for their answers if nothing is kept from run to run."""

    @property
    def tolerated_unacknowledged(self) -> int:
        """How many messages of QoS 1 and 2 the broker may have under way; packet ids allow 65,535."""
        return self.receive_maximum if self.version >= V5 and self.enforces_receive_maximum else 0xFFFF

    @property
    def gives_up_session(self) -> bool:
        """Whether DISCONNECT has to end a session that CONNECT asked to keep."""
        return self.version >= V5 and self.session_expiry_s is None

    def wants_clean_start(self, *, has_session: bool) -> bool:
        """After its first connection a client goes on with its session, if that outlives a break."""
        if self.version < V5 or self.session_expiry_s == 0:
            return self.clean_start
        return self.clean_start and not has_session

    def connect_packet(self, client_id: str, *, clean_start: bool) -> Connect:
        return Connect(
            client_id=client_id,
            version=self.version,
            clean_start=clean_start,
            keep_alive_s=self.keep_alive_s,
            will=self.will,
            user_name=self.user_name,
            password=self.password,
            properties=self._connect_properties() if self.version >= V5 else NO_PROPERTIES,
        )

    def _connect_properties(self) -> Properties:
        expiry_s = KEPT_OVER_BREAKS_S if self.session_expiry_s is None else self.session_expiry_s
        return Properties(
            session_expiry_s=expiry_s or None,
            receive_maximum=self.receive_maximum,
            maximum_packet_size=self.maximum_packet_size,
            topic_alias_maximum=self.topic_alias_maximum or None,
            request_response_information=1,
            user_properties=self.user_properties,
        )
