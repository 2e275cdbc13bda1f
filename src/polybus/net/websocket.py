"""MQTT over WebSocket: the frames of the `websockets` library's sans-I/O core, as a stream of bytes.

[MQTT-6.0.0-1] only binary frames carry packets; [MQTT-6.0.0-2] packets and frames need not align;
[MQTT-6.0.0-3] and [MQTT-6.0.0-4] the subprotocol is "mqtt" ("mqttv3.1" is taken from old clients).
"""

import asyncio
import http
from typing import Final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from polybus.broker.links import Port
from polybus.net.connection import Connection, MakeLink, Reception, StreamPort

SUBPROTOCOLS: Final = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))
LEAST_MESSAGE_LIMIT: Final = 1024 * 1024
"""A message may hold many packets, so even where packets are small it may be of this size."""
SMALL_PART_BYTES: Final = 16 * 1024
"""Begun frames of up to this size are waited for even when memory is short."""


class WebSocketConnection(Connection):
    __slots__ = ("_held_bytes", "_is_blocked", "_path", "_takes_frames", "_websocket")

    def __init__(
        self,
        reception: Reception,
        make_link: MakeLink,
        path: str,
        packet_size_bytes: int,
        allowed_origins: tuple[str, ...] = (),
    ) -> None:
        super().__init__(reception, make_link)
        self._path = path
        self._is_blocked = False
        self._takes_frames = False
        """The handshake was good, and no text came since."""
        self._held_bytes = 0
        """What was read of a request or a frame that is not whole yet."""
        # No compression: payloads are small or already packed, and it costs memory per connection.
        self._websocket = ServerProtocol(
            # Only browsers tell an origin, and cannot lie about it; others could say anything.
            origins=[*map(Origin, allowed_origins), None] if allowed_origins else None,
            subprotocols=SUBPROTOCOLS,
            max_size=max(packet_size_bytes + 1024, LEAST_MESSAGE_LIMIT),
        )

    def port(self, transport: asyncio.Transport) -> Port:
        return WebSocketPort(transport, self._reception.loop, self._websocket)

    def data_received(self, data: bytes) -> None:
        websocket = self._websocket
        websocket.receive_data(data)
        for event in websocket.events_received():
            if isinstance(event, Request):
                self._answer_handshake(event)
            elif isinstance(event, Frame):
                self._take_frame(event)
        is_in_handshake = websocket.state is State.CONNECTING and not websocket.eof_sent
        if not self._hold(self._held_bytes + len(data) if is_in_handshake else len(websocket.reader.buffer)):
            websocket.fail(CloseCode.TRY_AGAIN_LATER, "no memory for so large a message now")
        self._send_pending()

    def eof_received(self) -> None:
        self._websocket.receive_eof()
        self._send_pending()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hold(0)
        super().connection_lost(exc)

    def _hold(self, size: int) -> bool:
        """Count what the parser keeps. False: there is no room for it."""
        more, self._held_bytes = size - self._held_bytes, size
        if not more:
            return True
        return self._reception.hold_parts(more) or size <= SMALL_PART_BYTES

    def _answer_handshake(self, request: Request) -> None:
        websocket = self._websocket
        if request.path.partition("?")[0] != self._path:
            text = f"MQTT is served at {self._path}\n"
            response = websocket.reject(http.HTTPStatus.NOT_FOUND, text)
        else:
            response = websocket.accept(request)
        self._takes_frames = response.status_code == http.HTTPStatus.SWITCHING_PROTOCOLS
        websocket.send_response(response)

    def _take_frame(self, frame: Frame) -> None:
        """Also those that came just before the peer's Close: they were sent, so they count."""
        if not self._takes_frames:
            return
        if frame.opcode is Opcode.TEXT:
            self._takes_frames = False  # nor what continues it
            self._websocket.fail(CloseCode.UNSUPPORTED_DATA, "MQTT travels in binary frames [MQTT-6.0.0-1]")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            super().data_received(bytes(frame.data))

    def _send_pending(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        pending = self._websocket.data_to_send()
        if self._is_blocked and self._websocket.state is State.OPEN:
            return  # pongs; a peer that does not read them need not get each
        for data in pending:
            if data:
                transport.write(data)
            else:  # the sans-I/O core's sign for: nothing more from our side
                self.close()
                return
        if self._websocket.close_expected():
            self.close()

    def pause_writing(self) -> None:
        self._is_blocked = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._is_blocked = False
        super().resume_writing()


class WebSocketPort(StreamPort):
    __slots__ = ("_raw_write", "_websocket")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, websocket: ServerProtocol
    ) -> None:
        super().__init__(transport, loop)
        self._websocket = websocket
        self._raw_write = transport.write
        self.write = self._write_frame
        self.writelines = self._write_frames

    def _write_frame(self, data: bytes) -> None:
        if self._websocket.state is State.OPEN:
            self._websocket.send_binary(data)
            self._raw_write(b"".join(self._websocket.data_to_send()))

    def _write_frames(self, data: list[bytes]) -> None:
        for piece in data:
            self._write_frame(piece)

    def close(self) -> None:
        if self._transport.is_closing():
            return
        if self._websocket.state is State.OPEN:
            self._websocket.send_close(CloseCode.NORMAL_CLOSURE)
        if pending := b"".join(self._websocket.data_to_send()):  # the answer to the peer's Close, too
            self._raw_write(pending)
        super().close()
