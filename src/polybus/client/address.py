"""Where a broker is: the address in words, and the TLS settings that go with it."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from polybus.errors import UsageError

MQTT: Final = "mqtt"
TBUS: Final = "tbus"


@dataclass(frozen=True)
class Scheme:
    protocol: str
    default_port: int
    has_tls: bool = False
    is_websocket: bool = False
    is_unix: bool = False


SCHEMES: Final[Mapping[str, Scheme]] = {
    "mqtt": Scheme(MQTT, 1883),
    "mqtts": Scheme(MQTT, 8883, has_tls=True),
    "ws": Scheme(MQTT, 80, is_websocket=True),
    "wss": Scheme(MQTT, 443, has_tls=True, is_websocket=True),
    "mqtt+unix": Scheme(MQTT, 0, is_unix=True),
    "tbus": Scheme(TBUS, 5035),
    "tbuss": Scheme(TBUS, 5036, has_tls=True),
    "tbus+unix": Scheme(TBUS, 0, is_unix=True),
}

DEFAULT_WEBSOCKET_PATH: Final = "/mqtt"


@dataclass(frozen=True)
class Tls:
    """`ca_file` names whom to trust (default: the system's), `cert_file` and `key_file` who we are.

    `insecure` accepts any certificate: for trying things out, never for secrets.
    """

    ca_file: str | Path | None = None
    cert_file: str | Path | None = None
    key_file: str | Path | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """Raises `UsageError` naming the file that cannot be used."""
        if self.key_file and not self.cert_file:
            raise UsageError("TLS: a key file needs the certificate file it belongs to")
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"TLS: cannot use the CA file {self.ca_file}: {error}") from error
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file:
            try:
                context.load_cert_chain(self.cert_file, self.key_file)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(
                    f"TLS: cannot use the certificate {self.cert_file} with key"
                    f" {self.key_file or self.cert_file}: {error}"
                ) from error
        return context


@dataclass(frozen=True)
class Address:
    """`path` is the WebSocket's resource, or the file of a Unix socket."""

    scheme: Scheme
    host: str = ""
    port: int = 0
    path: str = ""
    user_name: str | None = None
    password: str | None = None
    ssl_context: ssl.SSLContext | None = None

    def __str__(self) -> str:
        if self.scheme.is_unix:
            return self.path
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def websocket_url(self) -> str:
        return f"{'wss' if self.scheme.has_tls else 'ws'}://{self}{self.path}"


def elsewhere(address: Address, place: str) -> Address:
    """The same with another host and port, given as `host:port`."""
    host, _, port = place.rpartition(":")
    scheme = SCHEMES[address.scheme.protocol] if address.scheme.is_unix else address.scheme
    return replace(address, scheme=scheme, host=host.strip("[]"), port=int(port), path="")


def parse_address(url: str, tls: Tls | ssl.SSLContext | None = None) -> Address:
    """Raises `UsageError` saying what is wrong with the address and what would be right."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"address {url!r}: {error}") from error
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None or "://" not in url:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise UsageError(f"address {url!r}: expected one of {known}, for example mqtt://127.0.0.1:1883")
    user_name = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    if scheme.is_unix:
        if not parts.path:
            raise UsageError(
                f"address {url!r}: name the socket's file, for example {parts.scheme}:///run/polybus.sock"
            )
        return Address(scheme, path=unquote(parts.path), user_name=user_name, password=password)
    if not parts.hostname:
        raise UsageError(f"address {url!r}: the host is missing, for example {parts.scheme}://127.0.0.1")
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    if path not in ("", "/") and not scheme.is_websocket:
        raise UsageError(f"address {url!r}: only ws:// and wss:// have a path")
    if tls is not None and not scheme.has_tls:
        raise UsageError(f"address {url!r}: TLS settings need mqtts://, wss:// or tbuss://")
    return Address(
        scheme,
        parts.hostname,
        scheme.default_port if port is None else port,
        (path or DEFAULT_WEBSOCKET_PATH) if scheme.is_websocket else "",
        user_name,
        password,
        _context(tls) if scheme.has_tls else None,
    )


def _context(tls: Tls | ssl.SSLContext | None) -> ssl.SSLContext:
    return tls if isinstance(tls, ssl.SSLContext) else (tls or Tls()).context()
