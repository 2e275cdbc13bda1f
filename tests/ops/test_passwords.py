"""The password file, on a real disk."""

import stat
from pathlib import Path

import argon2
import pytest

from polybus.errors import ConfigError, UsageError
from polybus.ops.passwords import HASHER, check_password, decoy_hash, read_password_file, set_password


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert set_password(path, "ann", b"one")
    assert set_password(path, "bob", "zwölf".encode())
    users = read_password_file(path)
    assert users.keys() == {"ann", "bob"}
    assert check_password(users["ann"], b"one")
    assert not check_password(users["ann"], b"two")
    assert check_password(users["bob"], "zwölf".encode())


def test_only_one_line_changes_and_comments_stay(tmp_path: Path) -> None:
    path = tmp_path / "users"
    set_password(path, "ann", b"one")
    set_password(path, "annika", b"two")
    before = ["# staff", *path.read_text().splitlines(), "", "# end"]
    path.write_text("\n".join(before))
    assert not set_password(path, "ann", b"three")
    after = path.read_text().splitlines()
    assert [new == old for new, old in zip(after, before, strict=True)] == [True, False, True, True, True]
    assert check_password(read_password_file(path)["ann"], b"three")
    assert check_password(read_password_file(path)["annika"], b"two")


def test_only_the_owner_may_read_it_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.touch(mode=0o666)
    set_password(path, "ann", b"one")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["users"]


def test_the_hash_is_salted_and_hides_the_password(tmp_path: Path) -> None:
    path = tmp_path / "users"
    set_password(path, "ann", b"same")
    set_password(path, "bob", b"same")
    users = read_password_file(path)
    assert users["ann"] != users["bob"]
    assert "same" not in path.read_text()


@pytest.mark.parametrize("user", ["", "a:b", "#a", " a", "a\n", "a\x1b[0m"])
def test_names_that_would_break_the_file_are_refused(tmp_path: Path, user: str) -> None:
    with pytest.raises(UsageError, match="cannot be a user name"):
        set_password(tmp_path / "users", user, b"x")
    assert not (tmp_path / "users").exists()


@pytest.mark.parametrize("password", [b"", b"x" * 65_536])
def test_passwords_that_mqtt_cannot_carry_are_refused(tmp_path: Path, password: bytes) -> None:
    with pytest.raises(UsageError, match="1 to 65535 bytes"):
        set_password(tmp_path / "users", "ann", password)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"users: cannot be written: No such file or directory"):
        set_password(tmp_path / "no" / "users", "ann", b"x")


HASH = HASHER.hash(b"x")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ann", r"users:1: expected user:hash; add users with: polybus passwd .*users USER"),
        (f"# x\n\n:{HASH}", r"users:3: expected user:hash"),
        (f"ann:{HASH}\nann:{HASH}", r"users:2: user 'ann' is in the file twice"),
        ("ann:secret", r"users:1: the hash of user 'ann' is not an Argon2 hash; set the password anew"),
        (f"a:b:{HASH}", r"users:1: the hash of user 'a' is not"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_password_file(path)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        read_password_file(path)


def test_a_decoy_costs_what_the_users_hashes_cost() -> None:
    costly = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=2).hash(b"x")
    assert argon2.extract_parameters(decoy_hash({"ann": costly})) == argon2.extract_parameters(costly)
    assert argon2.extract_parameters(decoy_hash({})) == argon2.extract_parameters(HASH)
