"""Every way a configuration can be wrong is told with file, key and remedy; every right one is read."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from polybus.broker.limits import Limits
from polybus.broker.services import STRATEGIES, ServiceRule
from polybus.errors import ConfigError
from polybus.ops.config import (
    RANGES,
    SECTIONS,
    AclRule,
    Config,
    Overrides,
    ServiceStrategy,
    Tbus,
    load,
    reload,
    reloadable_difference,
)
from polybus.ops.listeners import Listener


def write(folder: Path, text: str, name: str = "bus.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(path: Path | None, overrides: Overrides = Overrides()) -> str:  # noqa: B008 (frozen)
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value)


class TestRight:
    def test_without_a_file_mqtt_and_tbus_are_served_on_loopback(self) -> None:
        config = load(None)
        assert [listener.url for listener in config.listeners] == [
            "mqtt://127.0.0.1:1883",
            "tbus://127.0.0.1:5035",
        ]
        assert config.limits == Limits()
        assert config == Config()

    def test_an_empty_file_means_the_defaults(self, tmp_path: Path) -> None:
        path = write(tmp_path, "")
        assert load(path) == msgspec.structs.replace(Config(), source=path)

    def test_every_section_is_read(self, tmp_path: Path) -> None:
        users = write(tmp_path, "", "users.txt")
        config = load(
            write(
                tmp_path,
                """
                [server]
                data_dir = "data"
                log_level = "TRACE"
                [[listener]]
                port = 1884
                [limits]
                receive_maximum = 7
                connect_timeout_s = 2
                [mqtt]
                queue_full = "drop_oldest"
                [auth]
                password_file = "users.txt"
                [[acl]]
                topic = "a/%u/#"
                user = "b*"
                """,
            )
        )
        assert config.server.data_dir == tmp_path / "data"
        assert config.server.log_level == "TRACE"
        assert config.listeners == (Listener(kind="tcp", port=1884),)
        assert (config.limits.receive_maximum, config.limits.connect_timeout_s) == (7, 2.0)
        assert config.mqtt.queue_full == "drop_oldest"
        assert config.auth.password_file == users
        assert config.acl == (AclRule(topic="a/%u/#", user="b*"),)

    @pytest.mark.parametrize(
        ("lines", "url"),
        [
            ('kind = "tcp"', "mqtt://127.0.0.1:1883"),
            ('kind = "websocket"', "ws://127.0.0.1:8083/mqtt"),
            ('kind = "websocket"\npath = "/bus"\nport = 80', "ws://127.0.0.1:80/bus"),
            ('kind = "tls"\ncertificate = "c"\nprivate_key = "k"', "mqtts://127.0.0.1:8883"),
            ('kind = "wss"\ncertificate = "c"\nprivate_key = "k"\nhost = "::1"', "wss://[::1]:8084/mqtt"),
            ('kind = "unix"\npath = "/run/bus.sock"', "mqtt+unix:///run/bus.sock"),
            ('protocol = "tbus"', "tbus://127.0.0.1:5035"),
            ('protocol = "tbus"\nport = 0\nhost = "::1"', "tbus://[::1]:0"),
            (
                'protocol = "tbus"\nkind = "tls"\ncertificate = "c"\nprivate_key = "k"',
                "tbuss://127.0.0.1:5036",
            ),
            ('protocol = "tbus"\nkind = "unix"\npath = "/run/tbus.sock"', "tbus+unix:///run/tbus.sock"),
        ],
    )
    def test_a_listener_gets_what_its_kind_implies(self, tmp_path: Path, lines: str, url: str) -> None:
        write(tmp_path, "", "c")
        write(tmp_path, "", "k")
        config = load(write(tmp_path, f"[[listener]]\n{lines}"))
        assert [listener.url for listener in config.listeners] == [url]

    def test_relative_paths_start_from_the_file(self, tmp_path: Path) -> None:
        config = load(write(tmp_path, '[[listener]]\nkind = "unix"\npath = "bus.sock"'))
        assert config.listeners[0].path == str(tmp_path / "bus.sock")

    def test_origins(self, tmp_path: Path) -> None:
        text = '[[listener]]\nkind = "websocket"\nallowed_origins = '
        config = load(write(tmp_path, text + '["https://a.example", "http://[::1]:80"]'))
        assert config.listeners[0].allowed_origins == ("https://a.example", "http://[::1]:80")
        for wrong in ("https://a.example/", "a.example", "https://A.example", "*"):
            assert "listener[0].allowed_origins" in refusal(write(tmp_path, f'{text}["{wrong}"]'))
        assert "a list of texts in quotes" in refusal(write(tmp_path, text + '"https://a.example"'))

    def test_home_is_expanded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        assert load(write(tmp_path, '[server]\ndata_dir = "~/bus"')).server.data_dir == tmp_path / "bus"

    def test_rules_may_stand_in_their_own_file(self, tmp_path: Path) -> None:
        write(tmp_path, '[[acl]]\ntopic = "a/#"\npermission = "deny"', "rules.toml")
        config = load(write(tmp_path, '[auth]\nacl_file = "rules.toml"'))
        assert config.acl == (AclRule(topic="a/#", permission="deny"),)

    @pytest.mark.parametrize(
        ("auth", "is_welcome"),
        [
            ("", True),
            ('password_file = "users"', False),
            ('password_file = "users"\nallow_anonymous = true', True),
            ("use_certificate_name = true", False),
        ],
    )
    def test_anonymous_clients_are_welcome_until_users_are_known(
        self, tmp_path: Path, auth: str, is_welcome: bool
    ) -> None:
        write(tmp_path, "", "users")
        assert load(write(tmp_path, f"[auth]\n{auth}")).auth.anonymous_is_welcome is is_welcome

    def test_neighbours_of_the_file_and_of_the_command_line(self, tmp_path: Path) -> None:
        path = write(tmp_path, '[mesh]\nneighbors = ["10.0.0.2:5035"]\ntoken = "t"\naddress = "[::1]:5035"')
        mesh = load(path, Overrides(neighbor="127.0.0.1:5036")).mesh
        assert mesh.neighbors == ("10.0.0.2:5035", "127.0.0.1:5036")
        assert (mesh.token, mesh.address, mesh.enabled) == ("t", "[::1]:5035", True)

    @pytest.mark.parametrize(
        "reference", ["", "10.0.0.2:5035", "10.0.0.2:5035;10.0.0.3:65535", "[::1]:1;127.0.0.1:1"]
    )
    def test_other_brokers(self, tmp_path: Path, reference: str) -> None:
        config = load(write(tmp_path, f'[tbus]\nserver_reference = "{reference}"\nbulk = "fixed"'))
        assert config.tbus == Tbus(bulk="fixed", server_reference=reference)

    def test_services(self, tmp_path: Path) -> None:
        config = load(
            write(
                tmp_path,
                """
                [requests]
                timeout_s = 5
                strategy = "random"
                concurrency = 3
                answer_within_s = 1.5
                [[service]]
                filter = "slow/#"
                concurrency = 1
                answer_within_s = 0
                [[service]]
                filter = "#"
                strategy = "fastest"
                """,
            )
        )
        assert config.requests.timeout_s == 5.0
        assert config.requests.default_rule() == ServiceRule("#", "random", 3, 1.5)
        assert config.service_rules() == (
            ServiceRule("slow/#", "random", 1, 0.0),
            ServiceRule("#", "fastest", 3, 1.5),
        )

    def test_without_any_the_broker_s_own_rule_holds(self) -> None:
        assert load(None).service_rules() == ()
        assert load(None).requests.default_rule() == ServiceRule()

    def test_the_broker_knows_the_same_strategies(self) -> None:
        assert get_args(ServiceStrategy) == tuple(STRATEGIES)


class TestFlags:
    def test_they_win_over_the_file(self, tmp_path: Path) -> None:
        path = write(
            tmp_path,
            '[server]\nlog_level = "WARN"\nlog_format = "json"\n[[listener]]\nport = 1\n[[listener]]\nport = 2',
        )
        config = load(path, Overrides(mqtt_port=3, log_level="DEBUG", data_dir=tmp_path))
        assert [listener.port for listener in config.listeners] == [3, 2]
        assert (config.server.log_level, config.server.log_format) == ("DEBUG", "json")
        assert config.server.data_dir == tmp_path

    def test_a_missing_listener_is_added(self, tmp_path: Path) -> None:
        path = write(tmp_path, '[[listener]]\nkind = "unix"\npath = "/s"')
        config = load(path, Overrides(mqtt_port=0, ws_port=8000, host="::1"))
        assert [listener.url for listener in config.listeners] == [
            "mqtt+unix:///s",
            "mqtt://[::1]:0",
            "ws://[::1]:8000/mqtt",
        ]

    def test_listeners_must_not_collide_through_them(self) -> None:
        assert "choose another port" in refusal(None, Overrides(mqtt_port=99, ws_port=99))
        assert "choose another port" in refusal(None, Overrides(mqtt_port=5035))
        load(None, Overrides(mqtt_port=5035, tbus_port=0))

    def test_each_protocol_has_its_port(self, tmp_path: Path) -> None:
        path = write(tmp_path, '[[listener]]\nprotocol = "tbus"\nport = 7\n[[listener]]\nport = 8')
        ports = [listener.port for listener in load(path, Overrides(mqtt_port=3, tbus_port=4)).listeners]
        assert ports == [4, 3]
        alone = write(tmp_path, "[[listener]]\nport = 8")
        assert [each.url for each in load(alone, Overrides(tbus_port=0)).listeners] == [
            "mqtt://127.0.0.1:8",
            "tbus://127.0.0.1:0",
        ]

    def test_one_protocol_only(self) -> None:
        flags = Overrides(only="tbus", host="0.0.0.0", tbus_port=5040, connections=3)
        config = reload(load(None, flags))
        assert [listener.url for listener in config.listeners] == ["tbus://0.0.0.0:5040"]
        assert config.limits.connections == 3

    def test_a_data_dir_that_is_a_file_is_told_by_its_flag(self, tmp_path: Path) -> None:
        path = write(tmp_path, "")
        assert "--data-dir" in refusal(path, Overrides(data_dir=path))


WRONG = [
    ("unknown section", "[servr]", "servr", "did you mean server?"),
    ("unknown key", "[limits]\nrecieve_maximum = 3", "limits.recieve_maximum", "did you mean receive_maximum?"),
    ("misplaced key", 'log_level = "INFO"', "log_level", "did you mean server.log_level?"),
    (
        "key of another section",
        "[mqtt]\nconnections = 1",
        "mqtt.connections",
        "did you mean limits.connections?",
    ),
    ("key like nothing", "[auth]\nzzz = 1", "auth.zzz", "known here: allow_anonymous, password_file"),
    ("key of a listener", "[[listener]]\n[[listener]]\nprot = 1", "listener[1].prot", "did you mean port?"),
    (
        "text for a number",
        '[limits]\nconnections = "5"',
        "limits.connections",
        'a whole number from 1 to 10000000, got "5"',
    ),
    ("truth for a number", "[limits]\nkeep_alive_s = true", "limits.keep_alive_s", "got true"),
    ("fraction for a whole", "[limits]\nsessions = 1.5", "limits.sessions", "got 1.5"),
    ("number for truth", "[mqtt]\nqueue_qos0 = 1", "mqtt.queue_qos0", "expected true or false, got 1"),
    ("list for text", "[[listener]]\nhost = []", "listener[0].host", "expected text in quotes, got a list"),
    ("date for a path", "[server]\ndata_dir = 2026-01-01", "server.data_dir", "a path in quotes, got a date"),
    ("empty path", '[server]\ndata_dir = ""', "server.data_dir", "a path in quotes"),
    (
        "not a number",
        "[limits]\nconnect_timeout_s = nan",
        "limits.connect_timeout_s",
        "from 0.1 to 3600, got nan",
    ),
    ("too small", "[limits]\nreceive_maximum = 0", "limits.receive_maximum", "from 1 to 65535, got 0"),
    ("too large", "[[listener]]\nport = 65536", "listener[0].port", "from 0 to 65535, got 65536"),
    (
        "bad choice",
        '[mqtt]\nqueue_full = "drop"',
        "mqtt.queue_full",
        'one of "drop_newest", "drop_oldest", got "drop"',
    ),
    ("bad kind", '[[listener]]\nkind = "ws"', "listener[0].kind", '"unix", got "ws"; did you mean "wss"?'),
    ("lower case level", '[server]\nlog_level = "info"', "server.log_level", 'did you mean "INFO"?'),
    ("table for a list", "[listener]\nport = 1", "listener", "each written as [[listener]]"),
    ("list for a table", "[[limits]]", "limits", "written as [limits], got a list"),
    ("section that is a value", "acl = 5", "acl", "each written as [[acl]], got 5"),
    (
        "path of a tcp listener",
        '[[listener]]\npath = "/x"',
        "listener[0].path",
        'kind = "websocket" or "wss" or "unix"',
    ),
    ("port of a socket", '[[listener]]\nkind = "unix"\npath = "/s"\nport = 1', "listener[0].port", "remove it"),
    ("no path", '[[listener]]\nkind = "unix"', "listener[0].path", "give the socket's file"),
    (
        "long path",
        f'[[listener]]\nkind = "unix"\npath = "/{"x" * 120}"',
        "listener[0].path",
        "at most 107 bytes",
    ),
    ("HTTP path", '[[listener]]\nkind = "websocket"\npath = "mqtt"', "listener[0].path", 'such as "/mqtt"'),
    ("empty host", '[[listener]]\nhost = ""', "listener[0].host", '"0.0.0.0" for every interface'),
    ("no key", '[[listener]]\nkind = "tls"\ncertificate = "bus.toml"', "listener[0].private_key", "is missing"),
    (
        "no certificate",
        '[[listener]]\nkind = "wss"\nprivate_key = "bus.toml"',
        "listener[0].certificate",
        "is missing",
    ),
    (
        "no authority",
        '[[listener]]\nkind = "tls"\ncertificate = "bus.toml"\nprivate_key = "bus.toml"\n'
        "require_client_certificate = true",
        "listener[0].client_ca",
        "is missing",
    ),
    (
        "certificate that is not there",
        '[[listener]]\nkind = "tls"\ncertificate = "nope"\nprivate_key = "bus.toml"',
        "listener[0].certificate",
        "cannot be read: No such file or directory",
    ),
    ("same address", "[[listener]]\n[[listener]]", "listener[1].port", "is taken by listener[0]"),
    (
        "address within another",
        '[[listener]]\nhost = "0.0.0.0"\n[[listener]]\nkind = "websocket"\nport = 1883',
        "listener[1].port",
        "choose another port",
    ),
    (
        "same socket",
        '[[listener]]\nkind = "unix"\npath = "s"\n[[listener]]\nkind = "unix"\npath = "./s"',
        "listener[1].path",
        "choose another path",
    ),
    ("data_dir is a file", '[server]\ndata_dir = "bus.toml"', "server.data_dir", "is not a folder"),
    ("no folder for events", '[server]\nevent_file = "no/e.jsonl"', "server.event_file", "create it first"),
    (
        "one file for two",
        '[server]\nlog_file = "f"\nevent_file = "f"',
        "server.event_file",
        "a file of its own",
    ),
    (
        "TBus over WebSocket",
        '[[listener]]\nprotocol = "tbus"\nkind = "websocket"',
        "listener[0].kind",
        'choose kind = "tcp" or "tls" or "unix", or protocol = "mqtt"',
    ),
    ("bad protocol", '[[listener]]\nprotocol = "tbuss"', "listener[0].protocol", 'did you mean "tbus"?'),
    (
        "same address for two protocols",
        '[[listener]]\nport = 5035\n[[listener]]\nprotocol = "tbus"',
        "listener[1].port",
        "tbus://127.0.0.1:5035 is taken by listener[0]",
    ),
    ("bad bulk", '[tbus]\nbulk = "on"', "tbus.bulk", 'one of "adaptive", "fixed", "off", got "on"'),
    *(
        (f"other broker {place!r}", f'[tbus]\nserver_reference = "{place}"', "tbus.server_reference", remedy)
        for place, remedy in [
            ("10.0.0.2", "'10.0.0.2' is not ip:port"),
            ("10.0.0.2:0", "10.0.0.2:5035;10.0.0.3:5035"),
            ("10.0.0.2:65536", "is not ip:port"),
            ("10.0.0.2:+5", "is not ip:port"),
            ("bus.example:5035", "is not ip:port"),
            ("::1:5035", '"[::1]:5035"'),
            ("[10.0.0.2]:5035", "is not ip:port"),
            ("10.0.0.2:5035;", "'' is not ip:port"),
            ("10.0.0.2:5035; 10.0.0.3:5035", "' 10.0.0.3:5035' is not ip:port"),
        ]
    ),
    ("no time", "[requests]\ntimeout_s = 0", "requests.timeout_s", "a number from 0.1 to 4294967295, got 0"),
    ("bad strategy", '[requests]\nstrategy = "fast"', "requests.strategy", 'did you mean "fastest"?'),
    ("no requests at once", "[requests]\nconcurrency = 0", "requests.concurrency", "from 1 to 65535, got 0"),
    ("service without filter", "[[service]]\nconcurrency = 2", "service[0].filter", "is missing"),
    (
        "service with a bad filter",
        '[[service]]\nfilter = "a"\n[[service]]\nfilter = "a/#/b"',
        "service[1].filter",
        "must be the last level",
    ),
    ("shared service", '[[service]]\nfilter = "$share/g/a"', "service[0].filter", "without $share/<name>/"),
    (
        "service twice",
        '[[service]]\nfilter = "a"\n[[service]]\nfilter = "a"\nconcurrency = 2',
        "service[1].filter",
        "the first holds",
    ),
    (
        "service with too many",
        '[[service]]\nfilter = "a"\nconcurrency = 65536',
        "service[0].concurrency",
        "from 1 to 65535, got 65536",
    ),
    ("no folder for logs", '[server]\nlog_file = "no/bus.log"', "server.log_file", "create it first"),
    (
        "no memory for a packet",
        "[limits]\nmemory_bytes = 2_000_000\npacket_size_bytes = 2_000_001",
        "limits.memory_bytes",
        "raise the one or lower the other",
    ),
    ("no way in", "[auth]\nallow_anonymous = false", "auth.allow_anonymous", "give password_file or"),
    ("no such users", '[auth]\npassword_file = "nope"', "auth.password_file", "cannot be read: No such file"),
    ("rules twice", '[auth]\nacl_file = "bus.toml"\n[[acl]]\ntopic = "a"', "auth.acl_file", "in one place"),
    ("rule without topic", '[[acl]]\nuser = "a"', "acl[0].topic", "is missing; give text in quotes"),
    ("bad filter", '[[acl]]\ntopic = "a"\n[[acl]]\ntopic = "#/a"', "acl[1].topic", "must be the last level"),
    ("shared filter", '[[acl]]\ntopic = "$share/g/a"', "acl[0].topic", "without $share/<name>/"),
    ("neighbour", '[mesh]\nneighbors = ["bus.example:5035"]', "mesh.neighbors", '"10.0.0.2:5035"'),
    ("own address", '[mesh]\naddress = "5035"', "mesh.address", '"10.0.0.2:5035"'),
    ("no token", '[mesh]\nneighbors = ["10.0.0.2:5035"]', "mesh.token", "the same at each broker"),
    ("no mesh", '[mesh]\nenabled = false\nneighbors = ["127.0.0.1:5036"]', "mesh.enabled", "choose one"),
    ("many", '[mesh]\nmax_neighbors = 0\nneighbors = ["127.0.0.1:5036"]', "mesh.neighbors", "raise it"),
    ("long text", f'[mqtt]\nserver_reference = "{"x" * 65536}"', "mqtt.server_reference", "shorten it"),
]


class TestWrong:
    @pytest.mark.parametrize(
        ("text", "key", "remedy"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
    )
    def test_file_key_and_remedy_are_named(self, tmp_path: Path, text: str, key: str, remedy: str) -> None:
        path = write(tmp_path, text)
        lines = refusal(path).splitlines()
        assert [line for line in lines if line.startswith(f"{path}: {key}: ") and remedy in line], lines
        assert len(lines) == 1, "one mistake, one line"

    def test_all_problems_are_told_at_once(self, tmp_path: Path) -> None:
        text = (
            "[limits]\nconnections = 0\nkeep_alive_s = -1\n[[listener]]\nport = 1\n[[listener]]\nport = -1\n[x]"
        )
        assert [line.split(": ")[1] for line in refusal(write(tmp_path, text)).splitlines()] == [
            "x",
            "limits.connections",
            "limits.keep_alive_s",
            "listener[1].port",
        ]

    def test_bad_toml_is_told_with_line_and_column(self, tmp_path: Path) -> None:
        path = write(tmp_path, "[server]\nlog_level = INFO\n")
        text = refusal(path)
        assert text.startswith(f"{path}: not valid TOML: ")
        assert "(at line 2, column 13)" in text

    def test_bytes_that_are_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "bus.toml"
        path.write_bytes(b"# \xff")
        assert refusal(path) == f"{path}: not UTF-8 text: bad byte at offset 2; save it as UTF-8"

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        assert refusal(tmp_path / "no.toml") == f"{tmp_path}/no.toml: there is no such file"

    def test_a_folder_instead_of_a_file(self, tmp_path: Path) -> None:
        assert refusal(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"

    def test_a_path_through_a_file(self, tmp_path: Path) -> None:
        path = write(tmp_path, "") / "bus.toml"
        assert refusal(path) == f"{path}: cannot be read: Not a directory"

    def test_a_rule_file_is_named_itself(self, tmp_path: Path) -> None:
        rules = write(tmp_path, '[[acl]]\ntopic = "a"\naction = "read"\n[server]', "rules.toml")
        lines = refusal(write(tmp_path, '[auth]\nacl_file = "rules.toml"')).splitlines()
        assert lines[0] == f"{rules}: server: unknown key; this file holds only [[acl]] rules"
        assert lines[1].startswith(f'{rules}: acl[0].action: expected one of "publish", "subscribe", "both"')

    def test_a_rule_file_that_is_not_there(self, tmp_path: Path) -> None:
        assert "rules.toml: there is no such file" in refusal(
            write(tmp_path, '[auth]\nacl_file = "rules.toml"')
        )


class TestRanges:
    def test_every_number_has_one_and_nothing_else_has(self) -> None:
        numbers = {
            f"{section}.{field.encode_name}"
            for section, struct in SECTIONS.items()
            for field in msgspec.structs.fields(struct)
            if {int, float} & {field.type, *get_args(field.type)}
        }
        assert numbers == RANGES.keys()

    @pytest.mark.parametrize("key", [key for key in RANGES if key.startswith("limits.")])
    def test_its_ends_are_allowed_and_its_default_lies_within(self, tmp_path: Path, key: str) -> None:
        name = key.removeprefix("limits.")
        low, high = RANGES[key]
        assert low <= getattr(Limits(), name) <= high
        room = "" if name in ("memory_bytes", "packet_size_bytes") else "memory_bytes = 1_000_000_000\n"
        small = "packet_size_bytes = 128\n" if name == "memory_bytes" else ""
        for value in (low, high):
            config = load(write(tmp_path, f"[limits]\n{room}{small}{name} = {value}"))
            assert getattr(config.limits, name) == value
        for value in (low - 1, high + 1):
            assert f"limits.{name}: expected " in refusal(write(tmp_path, f"[limits]\n{name} = {value}"))


class TestReload:
    def test_the_same_file_and_flags_are_read_again(self, tmp_path: Path) -> None:
        path = write(tmp_path, "")
        old = load(path, Overrides(mqtt_port=5))
        write(tmp_path, "[limits]\nconnections = 9")
        new = reload(old)
        assert new.limits.connections == 9
        assert [listener.port for listener in new.listeners] == [5, 5035]
        assert reloadable_difference(old, new) == []

    @pytest.mark.parametrize(
        ("text", "keys"),
        [
            ('[server]\ndata_dir = "d"\nlog_level = "DEBUG"', ["server.data_dir"]),
            ("port = 1884", ["listener[0].port"]),
            ('[[acl]]\ntopic = "a"\n[mqtt]\nqueue_qos0 = true\n[limits]\nsessions = 1', []),
            (
                '[tbus]\nbulk = "off"\n[requests]\ntimeout_s = 1\n[[service]]\nfilter = "a"\n'
                '[server]\nevent_file = "e"\n[limits]\nstored_messages = 1',
                [],
            ),
        ],
    )
    def test_what_needs_a_restart_is_named(self, tmp_path: Path, text: str, keys: list[str]) -> None:
        listeners = '[[listener]]\n{}\n[[listener]]\nprotocol = "tbus"\n'
        text = listeners.format(text) if text.startswith("port") else text
        assert reloadable_difference(load(None), load(write(tmp_path, text))) == keys

    def test_a_listener_more_or_less_needs_a_restart(self, tmp_path: Path) -> None:
        one = load(write(tmp_path, "[[listener]]"))
        two = load(write(tmp_path, '[[listener]]\n[[listener]]\nkind = "websocket"'))
        assert "listener[1].kind" in reloadable_difference(one, two)
        assert reloadable_difference(one, two) == reloadable_difference(two, one)
