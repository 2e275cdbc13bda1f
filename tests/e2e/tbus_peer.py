"""A TBus client over a socket: what a client library does, with nothing of its own.

``python -m tests.e2e.tbus_peer PORT TOPIC`` is a service that takes any number of requests and answers none
of them. It prints ``ready``, and then what it is sent.
"""

import itertools
import socket
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from polybus.wire.tbus.codec import decode, encode, frames, next_frame
from polybus.wire.tbus.packets import (
    Bulk,
    ConnAck,
    Connect,
    ConnectReason,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    ReqAck,
    RequestState,
    SubAck,
    Subscribe,
)
from tests.e2e.processes import PATIENCE_S, unique

READ_BYTES = 65_536
LARGEST = 1 << 28


class TbusPeer:
    """What it is sent comes one message after the other, whether in a BULK or not."""

    def __init__(self, port: int, client_id: str) -> None:
        self.client_id = client_id
        self.bulks = 0
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._buffer = b""
        self._inbox: deque[Packet] = deque()
        self._ids = itertools.count(1)

    def close(self) -> None:
        self._socket.close()

    # -- to the broker --------------------------------------------------------------------------

    def send(self, *packets: Packet) -> None:
        self._socket.sendall(b"".join(map(encode, packets)))

    def send_bulk(self, *packets: Packet) -> None:
        self.send(Bulk(b"".join(map(encode, packets))))

    def connect(self, **options: object) -> ConnAck:
        self.send(Connect(self.client_id, **options))  # type: ignore[arg-type]
        answer = self.receive()
        assert isinstance(answer, ConnAck)
        return answer

    def subscribe(self, topic_filter: str, concurrency: int | None = None) -> None:
        packet_id = next(self._ids)
        self.send(Subscribe(packet_id, topic_filter, concurrency))
        answer = self.receive()
        assert answer == SubAck(packet_id), answer

    def new_request(self, topic: str, payload: bytes, timeout_s: int | None = None, **flags: bool) -> Publish:
        return Publish(topic, payload, is_request=True, timeout_s=timeout_s, packet_id=next(self._ids), **flags)

    def request(self, topic: str, payload: bytes, timeout_s: int | None = None, **flags: bool) -> int:
        """Its packet id."""
        request = self.new_request(topic, payload, timeout_s, **flags)
        self.send(request)
        assert request.packet_id is not None
        return request.packet_id

    def cancel(self, packet_id: int) -> None:
        self.send(ReqAck(packet_id, RequestState.CANCELED))

    def answer(self, request: Publish, payload: bytes) -> None:
        self.send(_answer_to(request, payload))

    def fail(self, request: Publish, why: str) -> None:
        assert request.packet_id is not None
        self.send(
            ReqAck(request.packet_id, RequestState.ERROR, request.response_destination, reason_string=why)
        )

    def leave(self) -> None:
        """Say goodbye, and wait until the broker has heard it."""
        self.send(Disconnect())
        while self._socket.recv(READ_BYTES):
            pass

    # -- from the broker ------------------------------------------------------------------------

    def receive(self) -> Packet:
        while not self._inbox:
            data = self._socket.recv(READ_BYTES)
            assert data, f"{self.client_id} was disconnected"
            self._take(data)
        return self._inbox.popleft()

    def given(self) -> Publish:
        """The next message, which is a request to this service."""
        request = self.receive()
        assert isinstance(request, Publish), request
        assert request.is_request
        return request

    def end(self, packet_id: int) -> tuple[str, bytes]:
        """The next message, which is how this request ended: as in docs/requests.md."""
        told = self.receive()
        if isinstance(told, Publish):
            assert told == Publish(
                None,
                told.payload,
                is_response=True,
                is_priority=told.is_priority,
                response_destination=self.client_id,
                packet_id=packet_id,
            )
            return "answered", told.payload
        assert isinstance(told, ReqAck), told
        assert told.packet_id == packet_id
        return f"REQACK {told.state}", (told.reason_string or "").encode()

    def check_quiet(self) -> None:
        """Everything the broker had to say has been read."""
        self.send(PingReq())
        answer = self.receive()
        assert answer == PingResp(), answer

    def _take(self, data: bytes) -> None:
        self._buffer += data
        while (frame := next_frame(self._buffer, 0, LARGEST)) is not None:
            first_byte, start, end = frame
            packet = decode(first_byte, self._buffer[start:end])
            self._buffer = self._buffer[end:]
            if isinstance(packet, Bulk):
                self.bulks += 1
                body = packet.body
                self._inbox += [decode(first, body[begin:stop]) for first, begin, stop in frames(body)]
            else:
                self._inbox.append(packet)


@contextmanager
def connected(port: int, client_id: str = "", **options: object) -> Iterator[TbusPeer]:
    peer = TbusPeer(port, client_id or unique("tbus"))
    try:
        assert peer.connect(**options).reason is ConnectReason.SUCCESS
        yield peer
        peer.leave()
    finally:
        peer.close()


def _answer_to(request: Publish, payload: bytes) -> Publish:
    return Publish(
        None,
        payload,
        is_response=True,
        is_priority=request.is_priority,
        response_destination=request.response_destination,
        packet_id=request.packet_id,
    )


def main(port: int, topic: str) -> None:
    with connected(port) as peer:
        peer.subscribe(topic, concurrency=65_535)
        print("ready", flush=True)
        while True:
            print(peer.receive(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
