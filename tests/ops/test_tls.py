"""TLS contexts from real certificates: what is served is what was configured."""

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from polybus.errors import ConfigError
from polybus.ops.listeners import Listener
from polybus.ops.tls import server_context


def make_pair(folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
    """A self-signed certificate and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        protection = serialization.BestAvailableEncryption(password)
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
    )
    return paths


def listener(
    pair: tuple[Path, Path], client_ca: Path | None = None, require_client_certificate: bool = False
) -> Listener:
    return Listener(
        kind="tls",
        port=8883,
        certificate=pair[0],
        private_key=pair[1],
        client_ca=client_ca,
        require_client_certificate=require_client_certificate,
    )


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """A whole handshake in memory; gives back the server's side. Raises `ssl.SSLError` if it fails."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    return ends[1]


def test_a_client_that_trusts_the_certificate_connects(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, "server")
    side = shake_hands(server_context(listener(pair)), ssl.create_default_context(cafile=pair[0]))
    assert side.version() == "TLSv1.3"


def test_old_versions_are_refused(tmp_path: Path) -> None:
    assert server_context(listener(make_pair(tmp_path, "server"))).minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_client_certificate_is_verified_when_one_is_shown(tmp_path: Path) -> None:
    pair, own = make_pair(tmp_path, "server"), make_pair(tmp_path, "client")
    context = server_context(listener(pair, client_ca=own[0]))
    client = ssl.create_default_context(cafile=pair[0])
    assert not shake_hands(context, client).getpeercert()
    client.load_cert_chain(*own)
    shown = shake_hands(context, client).getpeercert()
    assert shown
    assert shown["subject"] == ((("commonName", "localhost"),),)
    stranger = ssl.create_default_context(cafile=pair[0])
    stranger.load_cert_chain(*make_pair(tmp_path, "stranger"))
    with pytest.raises(ssl.SSLError):
        shake_hands(context, stranger)


def test_a_client_certificate_can_be_required(tmp_path: Path) -> None:
    pair, own = make_pair(tmp_path, "server"), make_pair(tmp_path, "client")
    context = server_context(listener(pair, own[0], require_client_certificate=True))
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake_hands(context, ssl.create_default_context(cafile=pair[0]))


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "one")[0], make_pair(tmp_path, "two")[1]
    with pytest.raises(ConfigError, match=r"one\.pem and private_key .*two\.key cannot be used together"):
        server_context(listener((certificate, key)))


def test_an_encrypted_key_is_refused_without_asking(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the key must not be encrypted"):
        server_context(listener(make_pair(tmp_path, "server", password=b"secret")))


def test_an_authority_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=r"client_ca .*ca\.pem cannot be used"):
        server_context(listener(make_pair(tmp_path, "server"), tmp_path / "ca.pem"))


def test_there_must_be_a_certificate() -> None:
    with pytest.raises(ConfigError, match="needs a certificate"):
        server_context(Listener(kind="tls", port=1))
