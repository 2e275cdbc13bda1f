"""`docs/protocols/tbus.md` and the tables of the code say the same."""

import re
from enum import IntEnum
from pathlib import Path

import pytest

from polybus.wire.tbus.crossing import BETWEEN_PROPERTIES
from polybus.wire.tbus.fields import Binary, Codec, Number, Rest, Text, Texts
from polybus.wire.tbus.layouts import LAYOUTS, PROPERTIES, Properties
from polybus.wire.tbus.packets import (
    ConnectReason,
    DisconnectReason,
    MessageType,
    RequestState,
    SubscribeReason,
    UnsubscribeReason,
)

PAGE = (Path(__file__).parents[3] / "docs" / "protocols" / "tbus.md").read_text()
ROW = re.compile(r"\|(.*)\|")


def section(title: str) -> str:
    """What stands below a heading that begins with `title`, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}.*?$(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def table(title: str, *columns: str) -> list[dict[str, str]]:
    """The rows of the table in a section whose header begins with these columns."""
    lines = section(title).splitlines()
    for at, line in enumerate(lines):
        header = _cells(line)
        if header[: len(columns)] == list(columns):
            rows = []
            for row in lines[at + 2 :]:
                if not row.startswith("|"):
                    break
                rows.append(dict(zip(header, _cells(row), strict=True)))
            return rows
    raise AssertionError(f"no table {columns} below {title}")


def layouts() -> dict[str, list[str]]:
    """Every line in a box that begins with a message type, as its fields."""
    boxes = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line.split(maxsplit=1) for box in boxes for line in box.splitlines()]
    return {line[0]: line[1].split(" · ") for line in lines if line[0] in MessageType.__members__}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []


def test_message_types() -> None:
    rows = table("Message types", "value", "type", "direction", "flags")
    assert {row["type"]: int(row["value"]) for row in rows} == {kind.name: kind for kind in MessageType}
    unused = re.search(r"^([\d, ]+) and (\d+) are not used\.$", section("Message types"), re.MULTILINE)
    assert unused is not None
    assert {*map(int, unused[1].split(",")), int(unused[2])} == set(range(16)) - set(MessageType)


def test_flags() -> None:
    for row in table("Message types", "value", "type", "direction", "flags"):
        said = {name: 1 << int(bit) for bit, name in re.findall(r"bit (\d) (\w+)", row["flags"])}
        layout = LAYOUTS[MessageType[row["type"]]]
        assert said == {flag.name: flag.mask for flag in layout.flags}


def test_every_type_has_a_layout() -> None:
    assert set(LAYOUTS) == set(MessageType)


def test_properties() -> None:
    rows = table("Properties", "id", "name", "type", "allowed in")
    assert [int(row["id"], 16) for row in rows] == list(PROPERTIES)
    for row in rows:
        spec = PROPERTIES[int(row["id"], 16)]
        assert row["name"] == spec.name
        assert {MessageType[name] for name in re.findall(r"[A-Z]+", row["allowed in"])} == spec.allowed_in
        assert kind_of(spec.codec) == row["type"].split(",")[0]
        if isinstance(spec.codec, Number):
            assert (spec.codec.lowest == 1) == ("not 0" in row["type"])


def test_properties_are_fields_of_their_messages() -> None:
    for spec in PROPERTIES.values():
        for kind in spec.allowed_in:
            assert spec.field in LAYOUTS[kind].build.__struct_fields__  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", MessageType)
def test_layouts(kind: MessageType) -> None:
    """Fields in their order, whether there are properties, which, and which of them are needed."""
    layout = LAYOUTS[kind]
    said = layouts().get(kind.name, [])
    if kind is MessageType.BULK:
        assert said == ["one or more whole messages, one behind the other"]
        assert [field.codec for field in layout.tail] == [Rest(shortest=1)]
        assert not layout.head
        return
    expected = [
        f"[{field.name} {kind_of(field.codec)}]"
        if field.absent_with
        else f"{field.name} {kind_of(field.codec)}"
        for field in layout.head
    ]
    # the page names them as a reader meets them, the table by their ids
    blocks = [part for part in said if "properties:" in part]
    if layout.properties is Properties.NEVER:
        assert blocks == []
    else:
        (block,) = blocks
        assert block.startswith("[properties:") == (layout.properties is Properties.OPTIONAL)
        names = re.findall(r"\[?\b[A-Z]\w+\]?", block.removeprefix("["))
        allowed = {spec.name for spec in PROPERTIES.values() if kind in spec.allowed_in}
        assert {name.strip("[]") for name in names} == allowed
        assert {name for name in names if not name.startswith("[")} == set(layout.needed)
        expected.append(block)
    expected += [f"{field.name} {kind_of(field.codec)}" for field in layout.tail]
    assert said == expected


def test_properties_between_brokers() -> None:
    rows = table("Between brokers", "id", "name", "type", "allowed in")
    assert [int(row["id"], 16) for row in rows] == list(BETWEEN_PROPERTIES)
    for row in rows:
        spec = BETWEEN_PROPERTIES[int(row["id"], 16)]
        assert row["name"] == spec.name
        assert row["type"].split(",")[0] == kind_of(spec.codec)
        if isinstance(spec.codec, Number):
            assert (spec.codec.lowest == 1) == ("not 0" in row["type"])
        allowed = {MessageType[name] for name in re.findall(r"[A-Z]{3,}", row["allowed in"])}
        assert allowed == spec.allowed_in


def test_no_id_is_used_twice() -> None:
    assert not PROPERTIES.keys() & BETWEEN_PROPERTIES.keys()


def kind_of(codec: Codec) -> str:
    """What the page calls it."""
    match codec:
        case Number():
            return f"u{8 * codec.size}"
        case Text():
            return "string"
        case Texts():
            return "strings"
        case Binary() | Rest():
            return "bytes"


@pytest.mark.parametrize(
    ("title", "reasons"), [("CONNECT 1 and CONNACK 2", ConnectReason), ("DISCONNECT 14", DisconnectReason)]
)
def test_reasons(title: str, reasons: type[IntEnum]) -> None:
    assert [int(row["reason"]) for row in table(title, "reason")] == list(reasons)


@pytest.mark.parametrize(("column", "reasons"), [("SUBACK", SubscribeReason), ("UNSUBACK", UnsubscribeReason)])
def test_subscription_reasons(column: str, reasons: type[IntEnum]) -> None:
    rows = table("SUBSCRIBE 8, SUBACK 9, UNSUBSCRIBE 10, UNSUBACK 11", "reason", "SUBACK", "UNSUBACK")
    assert [int(row["reason"]) for row in rows if row[column]] == list(reasons)


def test_request_states() -> None:
    rows = table("REQACK 5", "state", "name")
    assert [int(row["state"]) for row in rows] == list(RequestState)
    for row in rows:
        assert row["name"].startswith(RequestState(int(row["state"])).name.lower().replace("_", " "))


def test_pings() -> None:
    assert "`C0 00`, `D0 00`" in section("PINGREQ 12 and PINGRESP 13")


def test_client_id_length() -> None:
    lengths = re.search(r"A client id has (\d+) to ([\d,]+) bytes", PAGE)
    assert lengths is not None
    (codec,) = (field.codec for field in LAYOUTS[MessageType.CONNECT].head if field.name == "clientId")
    assert isinstance(codec, Text)
    assert (codec.shortest, codec.longest) == (int(lengths[1]), int(lengths[2].replace(",", "")))
