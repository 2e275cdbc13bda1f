"""A TBus client in memory, whose bytes are written by hand.

    alice = connect(world, "alice")
    alice.say("80 05 0001 02 'a/' 00")          # hex and quoted text, as in docs/protocols/tbus.md
    assert alice.heard() == wire("90 05 0001 00 0000")

Layouts come from the document; the codec is not used here.
"""

from typing import Self

from polybus.session.tbus.link import TbusLink
from polybus.session.tbus.options import TbusOptions
from tests.session.harness import Port, Wire, World

CONNACK = "20 02 00 00"


class TbusPeer(Wire):
    link: TbusLink

    def __init__(self, world: World, options: TbusOptions | None = None) -> None:
        port = Port()
        link = TbusLink(world.broker, port, options or TbusOptions(), peer="memory", now=world.now)
        super().__init__(world, port, link)

    def say(self, *messages: str) -> Self:
        """Send what `wire` makes of these, in one piece, and let the broker work."""
        self.feed(b"".join(map(wire, messages)))
        self.world.settle()
        return self

    def say_in_bytes(self, *messages: str) -> Self:
        """The same, one byte at a time."""
        for byte in b"".join(map(wire, messages)):
            self.feed(bytes((byte,)))
            self.world.settle()
        return self

    def heard(self) -> bytes:
        """What was written since the last call."""
        return self.port.take()

    def subscribe(self, topic_filter: str, concurrency: int | None = None) -> None:
        self.say(subscribe(topic_filter, concurrency))
        assert self.heard() == wire("90 05 0007 00 0000")


def connect(
    world: World,
    client_id: str,
    *,
    keep_alive_s: int = 0,
    clean_start: bool = False,
    bulk_limit: int | None = None,
    options: TbusOptions | None = None,
) -> TbusPeer:
    peer = TbusPeer(world, options)
    body = keep_alive_s.to_bytes(2) + text(client_id)
    if bulk_limit is not None:
        body += b"\x05\x45" + bulk_limit.to_bytes(4)
    peer.say(framed(0x11 if clean_start else 0x10, body))
    assert peer.heard().startswith(wire(CONNACK))
    return peer


def messages(data: bytes) -> list[tuple[int, bytes]]:
    """First byte and body of each message; the last one is whole."""
    found = []
    while data:
        size, at = data[1] & 0x7F, 2
        while data[at - 1] >= 0x80:
            size |= (data[at] & 0x7F) << 7 * (at - 1)
            at += 1
        assert at + size <= len(data)
        found.append((data[0], data[at : at + size]))
        data = data[at + size :]
    return found


def reqacks(peer: TbusPeer) -> list[tuple[int, int]]:
    """(PacketId, RequestState) of everything heard, which is nothing but REQACKs."""
    found = []
    for first_byte, body in messages(peer.heard()):
        assert first_byte == 0x50
        said = properties(body)
        found.append((int.from_bytes(said[0x40]), said[0x41][0]))
    return found


def connack_code(peer: TbusPeer) -> int:
    ((first_byte, body),) = messages(peer.heard())
    assert first_byte == 0x20
    return body[0]


def disconnect_code(peer: TbusPeer) -> int:
    """Of a DISCONNECT that says why, and is the only thing that was heard."""
    ((first_byte, body),) = messages(peer.heard())
    assert first_byte == 0xE0
    assert properties(body[2:])[0x1F]
    return int.from_bytes(body[:2])


def properties(block: bytes) -> dict[int, bytes]:
    """Of less than 128 bytes in all."""
    assert block[0] == len(block) - 1
    sizes = {0x02: 4, 0x40: 2, 0x41: 1, 0x43: 2, 0x44: 2, 0x45: 4}
    found = {}
    at = 1
    while at < len(block):
        name, at = block[at], at + 1
        size = sizes.get(name)
        if size is None:
            size, at = block[at], at + 1
        found[name] = block[at : at + size]
        at += size
    return found


def wire(message: str) -> bytes:
    """Bytes of hex digits and quoted text: "10 05 003c 02 'id'". Text has no spaces."""
    parts = message.split()
    return b"".join(p[1:-1].encode() if p[0] == "'" else bytes.fromhex(p) for p in parts)


def text(value: str) -> bytes:
    return varint(len(value.encode())) + value.encode()


def varint(n: int) -> bytes:
    out = bytearray()
    while True:
        out.append(n & 0x7F | (0x80 if n > 0x7F else 0))
        n >>= 7
        if not n:
            return bytes(out)


def framed(first_byte: int, body: bytes) -> str:
    """A message as `say` takes it."""
    return (bytes((first_byte,)) + varint(len(body)) + body).hex()


def message(topic: str, payload: bytes, flags: int = 0, properties: bytes = b"") -> str:
    return framed(0x30 | flags, text(topic) + varint(len(properties)) + properties + payload)


def request(topic: str, payload: bytes, packet_id: int, timeout_s: int | None = None, flags: int = 1) -> str:
    properties = b"" if timeout_s is None else b"\x02" + timeout_s.to_bytes(4)
    return message(topic, payload, flags, properties + b"\x40" + packet_id.to_bytes(2))


def answer(requester: str, packet_id: int, payload: bytes, flags: int = 4) -> str:
    properties = b"\x08" + text(requester) + b"\x40" + packet_id.to_bytes(2)
    return framed(0x30 | flags, varint(len(properties)) + properties + payload)


def subscribe(topic_filter: str, concurrency: int | None = None, packet_id: int = 7) -> str:
    properties = b"" if concurrency is None else b"\x03\x44" + concurrency.to_bytes(2)
    return framed(0x80, packet_id.to_bytes(2) + text(topic_filter) + properties)


def bulk(*messages: str) -> str:
    return framed(0x60, b"".join(map(wire, messages)))
