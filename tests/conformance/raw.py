"""Packets by hand, for what our own encoder refuses to write."""

from polybus.wire.mqtt.packets import V5, PacketType


def u16(number: int) -> bytes:
    return number.to_bytes(2)


def text(value: str | bytes) -> bytes:
    """A length-prefixed field; bytes go in as they are, well-formed or not."""
    data = value.encode() if isinstance(value, str) else value
    return u16(len(data)) + data


def varint(number: int) -> bytes:
    out = bytearray()
    while True:
        number, low = divmod(number, 128)
        out.append(low | 0x80 if number else low)
        if not number:
            return bytes(out)


def frame(first_byte: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((first_byte,)) + varint(len(body)) + body


def no_properties(version: int) -> bytes:
    """The place where the properties of this version would be."""
    return b"\x00" if version >= V5 else b""


def properties(version: int, *parts: bytes) -> bytes:
    """These encoded properties in 5.0, nothing before."""
    body = b"".join(parts)
    return varint(len(body)) + body if version >= V5 else b""


def connect(
    version: int,
    *payload: bytes,
    flags: int = 0x02,
    name: bytes = b"MQTT",
    level: int | None = None,
    props: bytes | None = None,
    first_byte: int = PacketType.CONNECT << 4,
) -> bytes:
    """A CONNECT with this payload (default: client id ``raw``) and keep alive 0."""
    return frame(
        first_byte,
        text(name),
        bytes((version if level is None else level, flags)),
        u16(0),
        no_properties(version) if props is None else props,
        *(payload or (text("raw"),)),
    )


def publish(
    version: int,
    topic: str | bytes,
    payload: bytes = b"",
    *,
    flags: int = 0,
    packet_id: int | None = None,
    props: bytes | None = None,
) -> bytes:
    return frame(
        PacketType.PUBLISH << 4 | flags,
        text(topic),
        b"" if packet_id is None else u16(packet_id),
        no_properties(version) if props is None else props,
        payload,
    )


def subscribe(version: int, *filters: tuple[str | bytes, int], flags: int = 2, packet_id: int = 1) -> bytes:
    """Each filter with the byte of its options."""
    pairs = [text(topic_filter) + bytes((options,)) for topic_filter, options in filters]
    return frame(PacketType.SUBSCRIBE << 4 | flags, u16(packet_id), no_properties(version), *pairs)


def unsubscribe(version: int, *filters: str | bytes, flags: int = 2, packet_id: int = 1) -> bytes:
    fields = [text(topic_filter) for topic_filter in filters]
    return frame(PacketType.UNSUBSCRIBE << 4 | flags, u16(packet_id), no_properties(version), *fields)
