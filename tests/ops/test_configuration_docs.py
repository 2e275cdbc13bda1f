"""The documentation of the configuration cannot drift from the configuration."""

import json
import re
from pathlib import Path

import msgspec

from polybus.broker.services import ServiceRule
from polybus.ops.config import RANGES, SECTIONS, load
from polybus.ops.tables import in_words

DOCS = Path(__file__).parents[2] / "docs"
BY_KIND = {"listener.port", "listener.path"}
"""Their default depends on the listener's protocol and kind; see TestRight in test_config."""
INHERITED = {"service.strategy", "service.concurrency", "service.answer_within_s"}


def documented() -> dict[str, tuple[str, str]]:
    """Default and value of each key, as docs/configuration.md has them."""
    rows: dict[str, tuple[str, str]] = {}
    section = ""
    for line in (DOCS / "configuration.md").read_text().splitlines():
        if heading := re.match(r"### `\[+(\w+)\]+`", line):
            section = heading[1]
        elif row := re.match(r"\| `(\w+)` \| (.*?) \| (.*?) \| .+ \|$", line):
            rows[f"{section}.{row[1]}"] = (row[2], row[3])
    return rows


def expected() -> dict[str, tuple[str, str]]:
    rows: dict[str, tuple[str, str]] = {}
    for section, struct in SECTIONS.items():
        for field in msgspec.structs.fields(struct):
            key = f"{section}.{field.encode_name}"
            default = "needed" if field.required else f"`{json.dumps(field.default)}`"
            default = "by kind" if key in BY_KIND else default.replace("`null`", "none")
            default = "as `[requests]`" if key in INHERITED else default
            low_high = f" from {RANGES[key][0]} to {RANGES[key][1]}" if key in RANGES else ""
            rows[key] = (default, in_words(field.type) + low_high)
    return rows


def test_every_key_is_documented_as_it_is() -> None:
    assert documented() == expected()


def test_the_example_loads() -> None:
    config = load(DOCS / "polybus.example.toml")
    assert [listener.url for listener in config.listeners] == [
        "mqtt://127.0.0.1:1883",
        "tbus://127.0.0.1:5035",
        "ws://127.0.0.1:8083/mqtt",
    ]


def test_what_the_example_shows_in_comments_is_right_too(tmp_path: Path) -> None:
    for name in ("server.pem", "server.key", "clients.pem", "users.txt"):
        (tmp_path / name).touch()
    text = (DOCS / "polybus.example.toml").read_text()
    uncommented = re.sub(r"^# (\[\[?\w+\]\]?$|\w+ = )", r"\1", text, flags=re.MULTILINE)
    uncommented = uncommented.replace('"/var/log/', f'"{tmp_path}/')
    path = tmp_path / "bus.toml"
    path.write_text(uncommented)
    config = load(path)
    assert [(each.protocol, each.kind) for each in config.listeners] == [
        ("mqtt", "tcp"),
        ("tbus", "tcp"),
        ("mqtt", "websocket"),
        ("mqtt", "tls"),
        ("mqtt", "unix"),
        ("tbus", "unix"),
    ]
    assert len(config.acl) == 2
    assert config.server.event_file == tmp_path / "polybus-events.jsonl"
    assert config.tbus.server_reference.count(";") == 1
    assert [service.filter for service in config.services] == ["render/#"]
    assert config.auth.password_file == tmp_path / "users.txt"
    assert [(rule.name, rule.partitions) for rule in config.streams] == [("fleet", 4)]
    assert config.data_folder == tmp_path / "data"


def test_what_the_documentation_shows_loads(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (DOCS / "configuration.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    path = tmp_path / "bus.toml"
    path.write_text("\n".join(blocks))
    config = load(path)
    assert len(config.acl) == 4
    assert [(rule.name, rule.partitions) for rule in config.streams] == [("fleet", 4)]
    assert config.service_rules() == (ServiceRule("render/#", "round_robin", 4, 30.0),)
