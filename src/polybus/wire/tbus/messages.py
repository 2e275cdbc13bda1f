"""Any TBus message, read and written as its layout says.

`publish` has quicker ways for the messages that come by the million; what they cannot read comes here.
"""

from collections.abc import Mapping
from typing import Final

from polybus.wire.tbus.fields import Value, Wrong, decode_length, decode_value, encode_value
from polybus.wire.tbus.layouts import LAYOUTS, PROPERTIES, Layout, Properties, PropertySpec
from polybus.wire.tbus.packets import MessageType, Packet, Publish
from polybus.wire.varint import encode_varint


class Tables:
    """Which messages there are, and what may stand in them."""

    def __init__(self, layouts: Mapping[MessageType, Layout], properties: Mapping[int, PropertySpec]) -> None:
        self.layouts = layouts
        self.properties = properties
        self.types: Mapping[object, MessageType] = {layout.build: kind for kind, layout in layouts.items()}
        self.allowed: Mapping[int, Mapping[int, PropertySpec]] = {
            kind: {identifier: spec for identifier, spec in properties.items() if kind in spec.allowed_in}
            for kind in layouts
        }


CLIENTS: Final = Tables(LAYOUTS, PROPERTIES)
"""Between a client and its broker."""

_USED_FLAGS: Final[Mapping[int, int]] = {
    kind: sum(flag.mask for flag in layout.flags) for kind, layout in LAYOUTS.items()
}


def type_of(packet: Packet) -> MessageType:
    return CLIENTS.types[type(packet)]


def decode_message(kind: MessageType, flags: int, body: bytes, tables: Tables = CLIENTS) -> Packet:
    """The message that a body holds. Raises Wrong."""
    layout = tables.layouts[kind]
    _check_flags(kind, layout, flags)
    values: dict[str, Value] = {}
    for flag in layout.flags:
        values[flag.field] = bool(flags & flag.mask)
    pos, end = 0, len(body)
    for field in layout.head:
        if flags & field.absent_with:
            values[field.field] = None
        else:
            values[field.field], pos = decode_value(field.codec, field.name, body, pos, end)
    has = layout.properties
    if has is Properties.ALWAYS or (has is Properties.OPTIONAL and pos < end):
        pos = _decode_properties(kind, body, pos, end, values, tables)
    for field in layout.tail:
        values[field.field], pos = decode_value(field.codec, field.name, body, pos, end)
    if pos < end:
        raise Wrong(f"the message is complete at byte {pos} of {end}, but goes on")
    packet = layout.build(**values)
    _check_publish(packet)
    return packet


def encode_message(packet: Packet, tables: Tables = CLIENTS) -> tuple[int, bytes]:
    """The first byte and the body. Raises Wrong for what `decode_message` would refuse."""
    kind = tables.types[type(packet)]
    layout = tables.layouts[kind]
    flags = 0
    for flag in layout.flags:
        if getattr(packet, flag.field):
            flags |= flag.mask
    _check_flags(kind, layout, flags)
    parts: list[bytes] = []
    for field in layout.head:
        value = getattr(packet, field.field)
        if not flags & field.absent_with:
            parts.append(encode_value(field.codec, field.name, value))
        elif value is not None:
            raise Wrong(f"{field.name} has no place beside the flags {flags:04b}")
    if layout.properties is not Properties.NEVER:
        block = _encode_properties(kind, packet, tables)
        if block or layout.properties is Properties.ALWAYS:
            parts += (encode_varint(len(block)), block)
    for field in layout.tail:
        parts.append(encode_value(field.codec, field.name, getattr(packet, field.field)))
    _check_publish(packet)
    return kind << 4 | flags, b"".join(parts)


def _decode_properties(
    kind: MessageType, body: bytes, pos: int, end: int, values: dict[str, Value], tables: Tables
) -> int:
    """Puts the properties at `pos` into `values`; the position after them."""
    size, pos = decode_length("the block of properties", body, pos, end)
    stop = pos + size
    allowed = tables.allowed[kind]
    seen: set[str] = set()
    while pos < stop:
        spec = allowed.get(body[pos])
        if spec is None:
            raise Wrong(
                f"{_misplaced(body[pos], tables)}; allowed are {', '.join(s.name for s in allowed.values())}"
            )
        if spec.name in seen:
            raise Wrong(f"property {spec.name} stands there twice")
        seen.add(spec.name)
        values[spec.field], pos = decode_value(spec.codec, spec.name, body, pos + 1, stop)
    for name in LAYOUTS[kind].needed:
        if name not in seen:
            raise Wrong(f"property {name} is missing")
    return pos


def _encode_properties(kind: MessageType, packet: Packet, tables: Tables) -> bytes:
    parts: list[bytes] = []
    needed = LAYOUTS[kind].needed
    for identifier, spec in tables.allowed[kind].items():
        value = getattr(packet, spec.field)
        if value is not None or spec.name in needed:
            parts += (bytes((identifier,)), encode_value(spec.codec, spec.name, value))
    return b"".join(parts)


def _misplaced(identifier: int, tables: Tables) -> str:
    if identifier in tables.properties:
        return f"property {tables.properties[identifier].name} is not allowed here"
    return f"property 0x{identifier:02X} is unknown"


def _check_flags(kind: MessageType, layout: Layout, flags: int) -> None:
    used = _USED_FLAGS[kind]
    if flags & ~used:
        raise Wrong(
            f"the flags are {flags:04b}; only {used:04b} may be set"
            if used
            else f"the flags are {flags:04b}, not 0"
        )
    if layout.exclusive and flags & layout.exclusive == layout.exclusive:
        names = " and ".join(flag.name for flag in layout.flags if flag.mask & layout.exclusive)
        raise Wrong(f"the flags {names} are set together; a message has at most one of them")


def _check_publish(packet: Packet) -> None:
    """A request and an answer have to say which, an answer also whose."""
    if not isinstance(packet, Publish) or not (packet.is_request or packet.is_response):
        return
    name = "a request" if packet.is_request else "an answer"
    if packet.packet_id is None:
        raise Wrong(f"{name} needs a PacketId")
    if packet.is_response and packet.response_destination is None:
        raise Wrong(f"{name} needs a ResponseDestination")
