"""Logins answered on a real event loop, by real threads."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import argon2
import pytest

from polybus.broker.access import Credentials, Verdict
from polybus.errors import ConfigError
from polybus.ops import access
from polybus.ops.access import BUSY, NO_ANONYMOUS, WRONG, PasswordAuthenticator, build_access
from polybus.ops.config import load
from polybus.ops.passwords import set_password

CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
USERS = {"ann": CHEAP.hash(b"right")}


def login(user: str | None, password: bytes | None, certificate_name: str | None = None) -> Credentials:
    return Credentials(client_id="c", user_name=user, password=password, certificate_name=certificate_name)


async def ask(authenticator: Any, credentials: Credentials) -> Verdict:
    answered: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    def answer(verdict: Verdict) -> None:
        assert threading.current_thread() is threading.main_thread()
        answered.set_result(verdict)  # raises on a second answer

    authenticator.authenticate(credentials, answer)
    return await asyncio.wait_for(answered, 30)


@pytest.mark.parametrize(
    ("credentials", "verdict"),
    [
        (login("ann", b"right"), Verdict(True, user="ann")),
        (login("ann", b"wrong"), WRONG),
        (login("eve", b"right"), WRONG),
        (login("ann", None), WRONG),
        (login("ann", b""), WRONG),
        (login(None, b"right"), WRONG),
        (login(None, None), NO_ANONYMOUS),
        (login(None, None, certificate_name="ann"), NO_ANONYMOUS),
    ],
)
def test_only_the_right_password_opens(credentials: Credentials, verdict: Verdict) -> None:
    authenticator = PasswordAuthenticator(USERS, anonymous_is_welcome=False)
    assert asyncio.run(ask(authenticator, credentials)) == verdict
    authenticator.close()


def test_anonymous_clients_have_no_user() -> None:
    authenticator = PasswordAuthenticator(USERS, anonymous_is_welcome=True)
    assert asyncio.run(ask(authenticator, login(None, None))) == Verdict(True, user=None)
    assert asyncio.run(ask(authenticator, login("ann", b"wrong"))) == WRONG
    authenticator.close()


def test_a_certificate_is_enough_if_so_configured() -> None:
    authenticator = PasswordAuthenticator({}, anonymous_is_welcome=False, certificate_is_enough=True)
    assert asyncio.run(ask(authenticator, login(None, None, "pump"))) == Verdict(True, user="pump")
    assert asyncio.run(ask(authenticator, login("pump", b"x"))) == WRONG
    authenticator.close()


def test_nobody_gets_in_with_the_decoys_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "decoy_hash", lambda users: CHEAP.hash(b"decoy"))
    authenticator = PasswordAuthenticator(USERS, anonymous_is_welcome=False)
    assert asyncio.run(ask(authenticator, login("eve", b"decoy"))) == WRONG
    authenticator.close()


class CountedChecks:
    """Stands in for the slow check: counts, and waits at a gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hashes: list[str] = []
        self.gate = threading.Event()
        self._check: Callable[[str, bytes], bool] = access.check_password
        monkeypatch.setattr(access, "check_password", self)

    def __call__(self, hashed: str, password: bytes) -> bool:
        assert threading.current_thread() is not threading.main_thread(), "must not block the loop"
        self.hashes.append(hashed)
        assert self.gate.wait(30)
        return self._check(hashed, password)


def test_an_unknown_user_is_checked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = CountedChecks(monkeypatch)
    checks.gate.set()
    authenticator = PasswordAuthenticator(USERS, anonymous_is_welcome=False)
    asyncio.run(ask(authenticator, login("eve", b"x")))
    assert len(checks.hashes) == 1
    assert argon2.extract_parameters(checks.hashes[0]) == argon2.extract_parameters(USERS["ann"])
    authenticator.close()


def test_a_login_that_succeeded_is_remembered_and_a_failure_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = CountedChecks(monkeypatch)
    checks.gate.set()
    authenticator = PasswordAuthenticator(USERS, anonymous_is_welcome=False)

    async def scenario() -> list[int]:
        costs = []
        for password in (b"right", b"right", b"wrong", b"wrong", b"right"):
            verdict = await ask(authenticator, login("ann", password))
            assert verdict.allowed == (password == b"right")
            costs.append(len(checks.hashes))
        return costs

    assert asyncio.run(scenario()) == [1, 1, 2, 3, 3]
    authenticator.close()


def test_user_and_password_are_remembered_together_not_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"ab": CHEAP.hash(b"c"), "a": CHEAP.hash(b"other")}
    authenticator = PasswordAuthenticator(users, anonymous_is_welcome=False)

    async def scenario() -> None:
        assert (await ask(authenticator, login("ab", b"c"))).allowed
        assert await ask(authenticator, login("a", b"bc")) == WRONG

    asyncio.run(scenario())
    authenticator.close()


def test_memory_of_logins_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MOST_REMEMBERED", 1)
    checks = CountedChecks(monkeypatch)
    checks.gate.set()
    authenticator = PasswordAuthenticator(USERS | {"bob": CHEAP.hash(b"b")}, anonymous_is_welcome=False)

    async def scenario() -> None:
        for user, password in (("ann", b"right"), ("bob", b"b"), ("bob", b"b"), ("ann", b"right")):
            assert (await ask(authenticator, login(user, password))).allowed

    asyncio.run(scenario())
    assert len(checks.hashes) == 3  # bob pushed ann out
    authenticator.close()


def test_past_the_limit_logins_are_refused_as_busy_and_then_taken_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = CountedChecks(monkeypatch)
    authenticator = PasswordAuthenticator(USERS, anonymous_is_welcome=False, most_waiting=3)

    async def scenario() -> None:
        waiting = [asyncio.ensure_future(ask(authenticator, login("ann", b"right"))) for _ in range(3)]
        await asyncio.sleep(0)
        assert await ask(authenticator, login("ann", b"right")) == BUSY
        checks.gate.set()
        assert [verdict.allowed for verdict in await asyncio.gather(*waiting)] == [True] * 3
        assert (await ask(authenticator, login("ann", b"right"))).allowed

    asyncio.run(scenario())
    authenticator.close()


class TestBuild:
    def test_by_default_everyone_is_welcome(self) -> None:
        built = build_access(load(None))
        assert built.authenticator is None
        assert built.authorizer is None

    def test_from_files(self, tmp_path: Path) -> None:
        set_password(tmp_path / "users", "ann", b"right")
        (tmp_path / "bus.toml").write_text('[auth]\npassword_file = "users"\n[[acl]]\ntopic = "home/%u/#"')
        built = build_access(load(tmp_path / "bus.toml"))
        assert asyncio.run(ask(built.authenticator, login("ann", b"right"))).user == "ann"
        assert asyncio.run(ask(built.authenticator, login(None, None))) == NO_ANONYMOUS
        assert built.authorizer is not None
        assert built.authorizer.may_publish("ann", "c", "home/ann/x")
        assert not built.authorizer.may_publish("ann", "c", "home/bob/x")

    def test_the_default_of_the_rules_is_configurable(self, tmp_path: Path) -> None:
        (tmp_path / "bus.toml").write_text(
            '[auth]\nacl_default = "allow"\n[[acl]]\ntopic = "a"\npermission = "deny"'
        )
        authorizer = build_access(load(tmp_path / "bus.toml")).authorizer
        assert authorizer is not None
        assert authorizer.may_publish(None, "c", "b")
        assert not authorizer.may_publish(None, "c", "a")

    def test_a_bad_password_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "users").write_text("ann")
        (tmp_path / "bus.toml").write_text('[auth]\npassword_file = "users"')
        with pytest.raises(ConfigError, match="users:1: expected user:hash"):
            build_access(load(tmp_path / "bus.toml"))
