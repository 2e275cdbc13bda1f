"""Addresses and TLS settings: what is understood, and what is said about the rest."""

import ssl
from pathlib import Path

import pytest

from polybus.client import Tls, Will, connect
from polybus.client.address import parse_address
from polybus.client.backoff import Backoff
from polybus.errors import UsageError


@pytest.mark.parametrize(
    ("url", "shown", "path"),
    [
        ("mqtt://127.0.0.1", "127.0.0.1:1883", ""),
        ("mqtt://host:1/", "host:1", ""),
        ("mqtt://[::1]:1884", "[::1]:1884", ""),
        ("mqtts://host", "host:8883", ""),
        ("ws://host", "host:80", "/mqtt"),
        ("wss://host:8084/a/b?c=d", "host:8084", "/a/b?c=d"),
        ("mqtt+unix:///run/a%20b.sock", "/run/a b.sock", "/run/a b.sock"),
    ],
)
def test_addresses(url: str, shown: str, path: str) -> None:
    address = parse_address(url)
    assert (str(address), address.path) == (shown, path)
    assert (address.ssl_context is not None) == url.startswith(("mqtts", "wss"))


def test_login_in_the_address() -> None:
    address = parse_address("mqtt://us%40er:p%3Aw@host")
    assert (address.user_name, address.password) == ("us@er", "p:w")
    assert "p:w" not in str(address)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("127.0.0.1:1883", "expected one of mqtt://"),
        ("http://host", "expected one of mqtt://"),
        ("mqtt://", "host is missing"),
        ("mqtt://host:99999", "Port out of range"),
        ("mqtt://host/path", "only ws:// and wss:// have a path"),
        ("mqtt+unix://", "name the socket's file"),
    ],
)
def test_bad_addresses_are_explained(url: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        parse_address(url)


def test_tls_settings_need_a_scheme_with_tls() -> None:
    with pytest.raises(UsageError, match="mqtts://"):
        parse_address("mqtt://host", Tls(insecure=True))


def test_bad_tls_files_are_named(tmp_path: Path) -> None:
    missing, junk = tmp_path / "missing", tmp_path / "junk"
    junk.write_text("junk")
    for tls, name in (
        (Tls(ca_file=missing), "missing"),
        (Tls(ca_file=junk), "junk"),
        (Tls(cert_file=junk), "junk"),
        (Tls(key_file=junk), "certificate file"),
    ):
        with pytest.raises(UsageError, match=name):
            tls.context()


def test_insecure_is_only_on_demand() -> None:
    assert Tls().context().verify_mode is ssl.CERT_REQUIRED
    assert Tls(insecure=True).context().verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"version": 3}, "4 is MQTT 3.1.1"),
        ({"clean_start": False}, "client_id"),
        ({"version": 4, "password": "x"}, "user_name"),
        ({"version": 4, "user_properties": {"a": "b"}}, "MQTT 5.0"),
        ({"version": 4, "will": Will("t", delay_s=1)}, "MQTT 5.0"),
    ],
)
def test_bad_arguments_of_connect_are_explained(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        connect("mqtt://host", **arguments)  # type: ignore[arg-type]


def test_backoff_grows_to_its_limit_and_never_overflows() -> None:
    backoff = Backoff(initial_s=1, maximum_s=8)
    assert [backoff.delay_s(n, 0.0) for n in (1, 2, 3, 4, 5)] == [0.5, 1, 2, 4, 4]
    assert backoff.delay_s(100_000, 0.999) < 8
