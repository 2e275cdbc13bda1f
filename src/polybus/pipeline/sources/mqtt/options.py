"""The options of `format("mqtt")`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from polybus.broker.topics import InvalidTopic, parse_filter
from polybus.client.address import Address, Tls, parse_address
from polybus.client.mqtt_settings import MqttSettings
from polybus.errors import UsageError
from polybus.pipeline.sources.options import OptionError, Options
from polybus.wire.mqtt.packets import V5, V311

VERSIONS: Final[Mapping[str, int]] = {"5": V5, "5.0": V5, "3.1.1": V311}
RETAINED: Final[Mapping[str, int]] = {"always": 0, "new": 1, "never": 2}
KNOWN: Final = (
    "batchTimeout", "caFile", "certFile", "clientId", "connectTimeout", "discardBefore", "failOnDataLoss",
    "insecure", "keepAlive", "keyFile", "maxRowsPerBatch", "password", "passwordFile", "qos", "quiet",
    "receiveMaximum", "retained", "rowsPerTask", "sessionExpiry", "spool", "spoolLimit", "topics", "url",
    "user", "version",
)  # fmt: skip
MAX_LEVELS: Final = 0xFFFF
MAX_UINT32: Final = 0xFFFF_FFFF


@dataclass(frozen=True)
class MqttOptions:
    url: str
    client_id: str
    filters: tuple[str, ...]
    spool: Path
    version: int = V5
    qos: int = 1
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    session_expiry_s: int = 7 * 86400
    keep_alive_s: int = 30
    receive_maximum: int = 10_000
    retain_handling: int = 1
    spool_limit_bytes: int = 1 << 30
    max_rows: int | None = None
    rows_per_task: int = 100_000
    fails_on_loss: bool = True
    discard_before: int = 0
    connect_timeout_s: float = 30.0
    quiet_s: float = 1.0
    batch_timeout_s: float = 30.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "MqttOptions":
        """Raises OptionError."""
        options = Options("mqtt", given, KNOWN)
        version = VERSIONS[options.choice("version", "5", VERSIONS)]
        parsed = cls(
            url=options.required("url", "mqtt://127.0.0.1:1883"),
            client_id=options.required("clientId", "spark-trucks"),
            filters=_filters(options.required("topics", "trucks/+/position,$share/spark/alarms/#")),
            spool=Path(options.required("spool", "/var/lib/spark/spool/trucks")).absolute(),
            version=version,
            qos=options.integer("qos", 1, low=1, high=2),
            user=options.text("user"),
            password=options.password(),
            tls=_tls(options),
            session_expiry_s=options.integer("sessionExpiry", 7 * 86400, low=60, high=MAX_UINT32),
            keep_alive_s=options.integer("keepAlive", 30, low=0, high=0xFFFF),
            receive_maximum=options.integer("receiveMaximum", 10_000, low=1, high=0xFFFF),
            retain_handling=RETAINED[options.choice("retained", "new", RETAINED)],
            spool_limit_bytes=options.size_bytes("spoolLimit", 1 << 30, low=64 << 10),
            max_rows=options.integer("maxRowsPerBatch", 0, low=1) or None,
            rows_per_task=options.integer("rowsPerTask", 100_000, low=1),
            fails_on_loss=options.boolean("failOnDataLoss", True),
            discard_before=options.integer("discardBefore", 0),
            connect_timeout_s=options.seconds("connectTimeout", 30.0),
            quiet_s=options.seconds("quiet", 1.0),
            batch_timeout_s=options.seconds("batchTimeout", 30.0),
        )
        if version < V5 and options.text("retained") not in (None, "always"):
            raise OptionError("mqtt: the option retained needs version 5; a broker of 3.1.1 always sends them")
        parsed.address()
        return parsed

    def address(self) -> Address:
        """Raises OptionError if the address, or a TLS file, cannot be used."""
        try:
            address = parse_address(self.url, self.tls)
        except UsageError as error:
            raise OptionError(f"mqtt: the option url: {error}") from error
        if address.user_name is not None or address.password is not None:
            # Spark shows a source's address in plans and logs.
            raise OptionError(
                "mqtt: the option url holds a user name or password; use the options user and password"
            )
        return address

    def settings(self) -> MqttSettings:
        return MqttSettings(
            client_id=self.client_id,
            version=self.version,
            clean_start=False,
            session_expiry_s=self.session_expiry_s,
            keep_alive_s=self.keep_alive_s,
            user_name=self.user,
            password=None if self.password is None else self.password.encode(),
            receive_maximum=self.receive_maximum,
            enforces_receive_maximum=False,  # messages are acknowledged in groups
        )


def _filters(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise OptionError(
            "mqtt: the option topics names no topic filter, for example trucks/+/position,alarms/#"
        )
    for name in names:
        try:
            parse_filter(name, MAX_LEVELS)
        except InvalidTopic as error:
            raise OptionError(f"mqtt: the option topics: {error}") from error
    return names


def _tls(options: Options) -> Tls | None:
    tls = Tls(
        ca_file=options.text("caFile"),
        cert_file=options.text("certFile"),
        key_file=options.text("keyFile"),
        insecure=options.boolean("insecure", False),
    )
    return None if tls == Tls() else tls
