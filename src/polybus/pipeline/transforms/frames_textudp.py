"""Text over UDP (TX-01): three bits, `MQTT`, and fields between bars. One datagram holds one packet."""

from collections.abc import Sequence
from typing import Final

from polybus.pipeline.transforms.frames_types import Frame, Unreadable

TYPES: Final = {
    b"000": "CONNECT", b"001": "CONNACK", b"010": "PUBLISH", b"011": "PUBACK",
    b"100": "SUBSCRIBE", b"101": "SUBACK", b"110": "UNSUBSCRIBE", b"111": "UNSUBACK",
}  # fmt: skip
_MARK: Final = b"MQTT|"


class TextUdpDecoder:
    protocol = "text-udp"

    def __init__(self) -> None:
        self._asked: dict[tuple[bool, str], str] = {}

    def measure(self, data: bytes, pos: int, to_server: bool) -> int | None:
        if data[pos : pos + 3] not in TYPES or data[pos + 3 : pos + 8] != _MARK:
            raise Unreadable("it does not begin with three bits and MQTT|")
        return len(data) - pos

    def is_plausible(self, data: bytes, pos: int, size: int, to_server: bool) -> bool:
        return True

    def prepare(self, frames: Sequence[tuple[bytes, bool]]) -> None:
        """A packet says by itself how to read it."""

    def read(self, data: bytes, to_server: bool) -> list[Frame]:
        self.measure(data, 0, to_server)
        name = TYPES[data[:3]]
        # A bar inside a message belongs to it (TX-03): only the first one divides.
        topic, bar, message = data[8:].partition(b"|")
        if name == "PUBLISH" and not bar:
            raise Unreadable("PUBLISH has a topic but no message")
        text = topic.decode(errors="replace") or None
        if name in ("PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE") and text is not None:
            self._asked[to_server, name[:3]] = text
        elif text is None:
            # Stop and wait: an acknowledgement is about the last packet of the other side.
            text = self._asked.get((not to_server, name[:3]))
        return [Frame(name, len(data), len(message) if name == "PUBLISH" else 0, text)]
