"""The command as its user meets it: what it prints where, and how it exits."""

import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from typer.testing import CliRunner

import polybus
from polybus.cli.main import app
from polybus.net import server
from polybus.ops.config import Config, LogLevel, load
from polybus.ops.passwords import check_password, read_password_file

runner = CliRunner()


def polybus_command(*arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
    """The real thing, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "polybus", *arguments], input=input, capture_output=True, text=True, timeout=60
    )


def test_version() -> None:
    done = polybus_command("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"polybus {polybus.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "taught"),
    [
        (["--help"], ["polybus serve", "config", "passwd"]),
        (
            ["serve", "--help"],
            ["polybus serve --config polybus.toml", "SIGHUP", "--mqtt-port", "--ws-port", "--tbus-port"],
        ),
        (
            ["tbus", "--help"],
            ["polybus tbus --client-limit 200 --log-level ALL", "--ip", "127.0.0.1", "5035", "15000"],
        ),
        (["ctl", "--help"], ["memory-limit"]),
        (["ctl", "memory-limit", "--help"], ["polybus ctl memory-limit 1000", "--bytes", "--url", "--user"]),
        (["config", "check", "--help"], ["polybus config check polybus.toml"]),
        (["config", "show", "--help"], ["polybus config show > polybus.toml"]),
        (["passwd", "--help"], ["polybus passwd users.txt alice", "auth.password_file"]),
    ],
)
def test_help_teaches_by_example(arguments: list[str], taught: list[str]) -> None:
    result = runner.invoke(app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0
    for text in taught:
        assert text in result.output


class TestServe:
    @pytest.fixture
    def served(self, monkeypatch: pytest.MonkeyPatch) -> list[Config]:
        configs: list[Config] = []

        def run(config: Config) -> int:
            configs.append(config)
            return 7

        monkeypatch.setattr(server, "run", run)
        return configs

    def test_flags_reach_the_server_and_its_code_comes_back(self, served: list[Config], tmp_path: Path) -> None:
        listeners = ["--host", "::1", "--mqtt-port", "0", "--ws-port", "9001"]
        logs = ["--log-level", "debug", "--log-format", "json"]
        result = runner.invoke(app, ["serve", *listeners, *logs, "--data-dir", str(tmp_path)])
        assert result.exit_code == 7
        assert [listener.url for listener in served[0].listeners] == [
            "mqtt://[::1]:0",
            "tbus://[::1]:5035",
            "ws://[::1]:9001/mqtt",
        ]
        assert (served[0].server.log_level, served[0].server.log_format) == ("DEBUG", "json")
        assert served[0].server.data_dir == tmp_path

    def test_the_file_is_read(self, served: list[Config], tmp_path: Path) -> None:
        path = tmp_path / "bus.toml"
        path.write_text("[limits]\nconnections = 5")
        runner.invoke(app, ["serve", "-c", str(path)])
        assert served[0].limits.connections == 5

    @pytest.mark.parametrize("flags", [["--mqtt-port", "65536"], ["--log-level", "loud"], ["--nope"]])
    def test_a_bad_flag_is_refused(self, served: list[Config], flags: list[str]) -> None:
        assert runner.invoke(app, ["serve", *flags]).exit_code == 2
        assert served == []

    def test_tbus_has_the_flags_of_the_document(self, served: list[Config]) -> None:
        flags = ["--ip", "0.0.0.0", "--port", "5040", "--client-limit", "7", "--log-level", "ALL"]
        assert runner.invoke(app, ["tbus", *flags]).exit_code == 7
        assert [listener.url for listener in served[0].listeners] == ["tbus://0.0.0.0:5040"]
        assert (served[0].limits.connections, served[0].server.log_level) == (7, "ALL")

    def test_tbus_by_itself(self, served: list[Config]) -> None:
        runner.invoke(app, ["tbus"])
        assert [listener.url for listener in served[0].listeners] == ["tbus://127.0.0.1:5035"]
        assert served[0].limits == Config().limits

    @pytest.mark.parametrize("level", get_args(LogLevel))
    def test_levels_in_either_case(self, served: list[Config], level: str) -> None:
        for written in (level, level.lower()):
            runner.invoke(app, ["tbus", "--log-level", written])
        assert [config.server.log_level for config in served] == [level, level]

    @pytest.mark.parametrize(
        "flags", [["--client-limit", "0"], ["--port", "65536"], ["--log-level", "loud"], ["--mqtt-port", "1"]]
    )
    def test_tbus_refuses_a_bad_flag(self, served: list[Config], flags: list[str]) -> None:
        assert runner.invoke(app, ["tbus", *flags]).exit_code == 2
        assert served == []

    def test_it_serves_says_where_and_stops(self, tmp_path: Path) -> None:
        with subprocess.Popen(
            [sys.executable, "-m", "polybus", "serve", "--mqtt-port", "0", "--tbus-port", "0"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().endswith("is ready, state is kept in data\n")
                assert (tmp_path / "data" / "state.sqlite").exists()
                where = re.fullmatch(r"\s*mqtt://127\.0\.0\.1:(\d+)\n", process.stdout.readline())
                assert where
                assert re.fullmatch(r"\s*tbus://127\.0\.0\.1:[1-9]\d*\n", process.stdout.readline())
                with socket.create_connection(("127.0.0.1", int(where[1])), timeout=10) as client:
                    client.sendall(bytes.fromhex("100d00044d51545404020000000161"))  # CONNECT, client id "a"
                    assert client.recv(4) == bytes.fromhex("20020000")
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=20) == 0
            finally:
                process.kill()

    def test_a_taken_port_is_one_line(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            flags = ["--mqtt-port", str(port), "--tbus-port", "0", "--log-level", "none", "--memory"]
            done = polybus_command("serve", *flags)
            assert done.returncode == 2
            assert len(done.stderr.splitlines()) == 1
            assert f"mqtt://127.0.0.1:{port}" in done.stderr
            assert "(--mqtt-port)" in done.stderr
            done = polybus_command("tbus", "--port", str(port), "--log-level", "none")
            assert done.returncode == 2
            assert f"tbus://127.0.0.1:{port}" in done.stderr


class TestConfigCheck:
    def test_a_good_file(self, tmp_path: Path) -> None:
        path = tmp_path / "bus.toml"
        path.write_text('[[listener]]\n[[listener]]\nkind = "websocket"\n[[acl]]\ntopic = "#"')
        result = runner.invoke(app, ["config", "check", str(path)])
        assert result.exit_code == 0
        assert result.stdout.splitlines() == [
            f"OK: {path}",
            "  listens at mqtt://127.0.0.1:1883",
            "  listens at ws://127.0.0.1:8083/mqtt",
            "  lets in: anonymous",
            "  access rules: 1",
            "  durable state: in data, sync normal",
            "  log: INFO as text to standard error",
        ]

    def test_without_a_file_the_defaults(self) -> None:
        assert runner.invoke(app, ["config", "check"]).stdout.startswith("OK: defaults\n")

    @pytest.mark.parametrize(
        ("text", "lines"),
        [
            (
                "[limits]\nconnections = 0\n[[listener]]\nport = -1",
                ["limits.connections: ", "listener[0].port: "],
            ),
            ("x = ", ["not valid TOML: "]),
            ('[auth]\npassword_file = "users"', ["users:1: expected user:hash"]),
            (
                '[[listener]]\nkind = "tls"\ncertificate = "users"\nprivate_key = "users"',
                ["mqtts://127.0.0.1:8883: certificate "],
            ),
        ],
    )
    def test_each_problem_is_one_line_on_standard_error(
        self, tmp_path: Path, text: str, lines: list[str]
    ) -> None:
        path = tmp_path / "bus.toml"
        path.write_text(text)
        (tmp_path / "users").write_text("nonsense\n")
        done = polybus_command("config", "check", str(path))
        assert done.returncode == 2
        assert done.stdout == ""
        told = done.stderr.splitlines()
        assert len(told) == len(lines)
        for line, expected in zip(told, lines, strict=True):
            assert line.startswith("polybus: ")
            assert expected in line


class TestConfigShow:
    def show(self, *arguments: str) -> dict[str, Any]:
        result = runner.invoke(app, ["config", "show", *arguments])
        assert result.exit_code == 0, result.output
        return tomllib.loads(result.stdout)

    def test_every_limit_stands_in_it(self) -> None:
        assert self.show()["limits"] == msgspec.structs.asdict(Config().limits)

    def test_what_it_prints_means_the_same(self, tmp_path: Path) -> None:
        for name in ("c", "k", "users"):
            (tmp_path / name).touch()
        (tmp_path / "rules.toml").write_text('[[acl]]\ntopic = "a\\u0022/%u"\nuser = "é*"')
        path = tmp_path / "bus.toml"
        path.write_text(
            """
            [[listener]]
            kind = "tls"
            certificate = "c"
            private_key = "k"
            [[listener]]
            kind = "unix"
            path = "s"
            [[listener]]
            kind = "websocket"
            port = 0
            [[listener]]
            protocol = "tbus"
            port = 0
            [auth]
            password_file = "users"
            acl_file = "rules.toml"
            [mqtt]
            sys_interval_s = 0.5
            [tbus]
            bulk = "off"
            [requests]
            concurrency = 2
            [[service]]
            filter = "a/#"
            answer_within_s = 0.5
            [server]
            event_file = "events"
            """
        )
        shown = tmp_path / "shown.toml"
        shown.write_text(runner.invoke(app, ["config", "show", "-c", str(path)]).stdout)
        first, second = load(path), load(shown)
        for part in ("server", "listeners", "limits", "mqtt", "tbus", "requests", "services", "acl"):
            assert getattr(first, part) == getattr(second, part)
        assert second.auth.password_file == first.auth.password_file
        assert second.auth.anonymous_is_welcome is first.auth.anonymous_is_welcome is False

    def test_a_bad_file_is_refused(self, tmp_path: Path) -> None:
        assert runner.invoke(app, ["config", "show", "-c", str(tmp_path / "no")]).exit_code == 2


class TestPasswd:
    def test_from_standard_input(self, tmp_path: Path) -> None:
        path = tmp_path / "users"
        assert polybus_command("passwd", str(path), "ann", "--stdin", input="hunter2\n").stdout.startswith(
            "Added ann"
        )
        done = polybus_command("passwd", str(path), "ann", "--stdin", input="hunter3\r\n")
        assert done.stdout == f"Changed ann in {path}\n"
        assert check_password(read_password_file(path)["ann"], b"hunter3")

    def test_asked_for_twice_and_never_shown(self, tmp_path: Path) -> None:
        path = tmp_path / "users"
        result = runner.invoke(app, ["passwd", str(path), "ann"], input="hunter2\nhunter2\n")
        assert result.exit_code == 0
        assert "hunter2" not in result.output
        assert check_password(read_password_file(path)["ann"], b"hunter2")

    def test_two_answers_that_differ_set_nothing(self, tmp_path: Path) -> None:
        result = runner.invoke(app, ["passwd", str(tmp_path / "users"), "ann"], input="one\ntwo\n")
        assert result.exit_code != 0
        assert not (tmp_path / "users").exists()

    @pytest.mark.parametrize(("user", "password"), [("a:b", "x\n"), ("ann", "\n"), ("ann", "")])
    def test_what_cannot_be_used_is_one_line(self, tmp_path: Path, user: str, password: str) -> None:
        done = polybus_command("passwd", str(tmp_path / "users"), user, "--stdin", input=password)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert os.listdir(tmp_path) == []
