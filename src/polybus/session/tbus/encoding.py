"""How TBus writes a delivery, and takes a run of messages apart."""

from typing import Final

from polybus.broker.message import Delivery, Message, Run
from polybus.wire.tbus.codec import encode_publish, next_frame

_ANY_SIZE: Final = 1 << 30


class TbusEncoding:
    """Topic, priority and payload; nothing else of a message crosses to TBus."""

    shared = True
    name = ""

    def frame(self, delivery: Delivery, now: float) -> tuple[bytes, bytes] | None:
        message = delivery.message
        return encode_publish(message.topic, message.payload, message.priority)

    def split(self, run: Run) -> list[Message]:
        """A run has neither flags nor properties, and topics under 128 bytes."""
        messages: list[Message] = []
        wire = run.wire
        pos = 0
        while (frame := next_frame(wire, pos, _ANY_SIZE)) is not None:
            _, start, pos = frame
            topic_end = start + 1 + wire[start]
            topic = wire[start + 1 : topic_end].decode()
            messages.append(Message(topic, wire[topic_end + 1 : pos], origin=run.origin))
        return messages


TBUS: Final = TbusEncoding()
