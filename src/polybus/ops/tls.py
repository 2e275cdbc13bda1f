"""TLS for the listeners that want it."""

import ssl

from polybus.errors import ConfigError
from polybus.ops.listeners import Listener
from polybus.ops.tables import reason_of


def server_context(listener: Listener) -> ssl.SSLContext:
    """The server side of an encrypted listener. Raises `ConfigError` that names the file at fault."""
    if listener.certificate is None or listener.private_key is None:
        raise ConfigError(f"{listener.url}: needs a certificate and its private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A password callback keeps OpenSSL from asking on the terminal for an encrypted key's.
        context.load_cert_chain(listener.certificate, listener.private_key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{listener.url}: certificate {listener.certificate} and private_key {listener.private_key}"
            f" cannot be used together: {reason_of(error)}; both must be PEM, belong together,"
            " and the key must not be encrypted"
        ) from error
    if listener.client_ca is not None:
        try:
            context.load_verify_locations(listener.client_ca)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{listener.url}: client_ca {listener.client_ca} cannot be used: {reason_of(error)};"
                " it must hold PEM certificates"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED if listener.require_client_certificate else ssl.CERT_OPTIONAL
    return context
