"""Requesters and services that speak MQTT 5.0, as docs/requests.md says."""

import asyncio

from polybus.wire.mqtt.packets import Properties, Publish
from tests.e2e.crash.mqtt import MqttClient
from tests.e2e.crash.session import Accepted
from tests.e2e.crash.world import POLL_S

TIMEOUT_S = 600


class Requester:
    def __init__(self, client: MqttClient, topic: str, qos: int) -> None:
        self.client = client
        self.world = client.world
        self.topic = topic
        self.qos = qos
        self._asked = 0
        self._unfinished: set[str] = set()
        client.on_accepted = self._accepted
        client.on_arrival = self._ended

    @property
    def answers(self) -> str:
        return f"answers/{self.client.client_id}"

    async def begin(self) -> None:
        await self.client.subscribe(self.answers, self.qos)

    async def ask_on(self, window: int, pause_s: float) -> None:
        while not self.world.is_draining:
            if self.client.is_connected and len(self._unfinished) < window:
                self.ask()
                await asyncio.sleep(self.world.pause_s(pause_s))
            else:
                await asyncio.sleep(POLL_S)

    def ask(self, timeout_s: int = TIMEOUT_S, expected: tuple[str, bytes] | None = None) -> None:
        """`expected` is its end, if not the answer of a service here."""
        self._asked += 1
        key = f"{self.client.client_id}-{self._asked}"
        self._unfinished.add(key)
        self.world.books.ask(key, self.qos, expected or ("answered", b"did " + key.encode()))
        properties = Properties(
            response_topic=self.answers,
            correlation_data=key.encode(),
            message_expiry_s=timeout_s,
            user_properties=(("polybus-request", "managed, waiting"),),
        )
        self.client.publish(Publish(self.topic, key.encode(), self.qos, properties=properties), key)

    def _accepted(self, accepted: Accepted) -> None:
        key = str(accepted.token)
        if accepted.is_refused:
            what = f"request {key} refused with 0x{accepted.reason_code:02X} {accepted.reason}"
            self.world.books.strange.append(what)
        else:
            self.world.books.acknowledge_request(key)

    def _ended(self, message: Publish) -> None:
        key = (message.properties.correlation_data or b"").decode()
        status = dict(message.properties.user_properties).get("polybus-status", "no status")
        self._unfinished.discard(key)
        self.world.books.end(key, status, message.payload)
        self.world.happened("end")


class Service:
    def __init__(self, client: MqttClient) -> None:
        self.client = client
        self.world = client.world
        self.taken: set[bytes] = set()
        """Answers that the broker acknowledged, by what they answer."""
        client.on_arrival = self._given
        client.on_accepted = self._accepted

    async def begin(self, topic_filter: str, concurrency: int = 4) -> None:
        offer = Properties(user_properties=(("polybus-service", str(concurrency)),))
        await self.client.subscribe(topic_filter, 1, offer)

    def _given(self, request: Publish) -> None:
        if dict(request.properties.user_properties).get("polybus-request") != "managed":
            return  # a cancel: someone else has it, or it has ended
        pause_s = 0.0 if self.world.is_draining else self.world.pause_s(0.05)
        asyncio.get_running_loop().call_later(pause_s, self._answer, request)

    def _answer(self, request: Publish) -> None:
        self.world.happened("answer")
        assert request.properties.response_topic is not None
        properties = Properties(correlation_data=request.properties.correlation_data)
        answer = Publish(request.properties.response_topic, b"did " + request.payload, 1, properties=properties)
        self.client.publish(answer, properties.correlation_data)

    def _accepted(self, accepted: Accepted) -> None:
        # It may refuse: after a crash the request may be someone else's, and its end is not ours to judge.
        if not accepted.is_refused:
            self.taken.add(accepted.token)  # type: ignore[arg-type]
