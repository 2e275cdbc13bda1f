"""The document's own examples (its section 5.4), against a real broker."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from polybus.client import (
    BusClosed,
    ConnectRefused,
    RequestCanceled,
    RequestTimeout,
    ServiceError,
    SubscribeRefused,
    UnsubscribeRefused,
)
from polybus.errors import UsageError
from polybus.tbus import (
    DisconnectReasonCode,
    TBusClient,
    decode_2_bytes,
    decode_4_bytes,
    decode_string,
    decode_var_len_int,
    encode_2_bytes,
    encode_4_bytes,
    encode_string,
    encode_var_len_int,
)
from tests.client.brokers import Broker, unique


@contextlib.contextmanager
def connected(client: TBusClient, **options: object) -> Iterator[TBusClient]:
    client.connect_to_broker(**options)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        with contextlib.suppress(BusClosed):
            client.disconnect()


def client(broker: Broker, *options: bool) -> TBusClient:
    return TBusClient(unique("python_client_id"), "127.0.0.1", broker.ports["tbus"], *options)


def cb(data: bytes) -> bytes:
    number_as_str, _byte_len = decode_string(data)
    number = int(number_as_str)
    return encode_string(number * 3)


def cb_req_pub(data: bytes) -> str:
    numstr, _len = decode_string(data)
    return numstr


@pytest.mark.parametrize("options", [(), (True, False)])
def test_subscribe_request_and_response(
    polybus_broker: Broker, options: tuple[bool, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    topic = unique("tripleValue")
    with (
        connected(client(polybus_broker)) as service,
        connected(client(polybus_broker, *options), clean_start=True, keep_alive=180) as requester,
    ):
        service.subscribe(topic, cb)
        request_id = requester.publish_request(topic, encode_string("14"), True, 60)
        assert requester.await_and_process_response(request_id, cb_req_pub) == "42"
        with pytest.raises(UsageError, match="no request"):
            requester.await_and_process_response(request_id, cb_req_pub)
    assert ("Connected" in capsys.readouterr().out) is bool(options)


def test_messages_go_to_the_same_callback(polybus_broker: Broker) -> None:
    topic = unique("test_topic")
    got: list[bytes] = []
    arrived = threading.Event()

    def callback(data: bytes) -> None:
        got.append(data)
        arrived.set()

    payload = encode_string("test_payload")
    with connected(client(polybus_broker)) as publisher, connected(client(polybus_broker)) as subscriber:
        publisher.publish_message(topic, payload, False, 20)  # waits for its subscriber
        subscriber.subscribe(topic, callback)
        assert arrived.wait(20)
        subscriber.unsubscribe(topic)
        with pytest.raises(UnsubscribeRefused):
            subscriber.unsubscribe(topic)
    assert got == [payload]


def test_subscribing_twice_replaces(polybus_broker: Broker) -> None:
    topic = unique("twice")
    with connected(client(polybus_broker)) as both:
        both.subscribe(topic, lambda data: b"first")
        both.subscribe(topic, lambda data: b"second")
        request_id = both.publish_request(topic, b"")
        assert both.await_and_process_response(request_id, bytes) == b"second"


def test_cancel_timeout_and_failure(polybus_broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    with connected(client(polybus_broker)) as requester:
        request_id = requester.publish_request(unique("nobody"), b"", False, 60)
        requester.cancel_request(request_id)
        with pytest.raises(RequestCanceled):
            requester.await_and_process_response(request_id, bytes)
        request_id = requester.publish_request(unique("nobody"), b"", timeout=0.2)
        with pytest.raises(RequestTimeout):
            requester.await_and_process_response(request_id, bytes)
        with pytest.raises(UsageError, match="no request"):
            requester.cancel_request(12345)
        requester.subscribe(topic := unique("fails"), cb)
        request_id = requester.publish_request(topic, encode_string("no number"))
        with pytest.raises(ServiceError, match="invalid literal"):
            requester.await_and_process_response(request_id, bytes)
    assert "HandlerFailed" in capsys.readouterr().err


def test_answer_waits_while_the_requester_is_away(polybus_broker: Broker) -> None:
    topic = unique("away")
    requester = client(polybus_broker)
    asked = threading.Event()

    def answer(data: bytes) -> bytes:
        asked.set()
        return encode_string("late")

    with connected(client(polybus_broker)) as service:
        with connected(requester):
            request_id = requester.publish_request(topic, encode_string("x"), False, 60)
        service.subscribe(topic, answer)
        assert asked.wait(20)
        with connected(requester, clean_start=False):
            assert requester.await_and_process_response(request_id, cb_req_pub) == "late"
        with connected(requester), pytest.raises(UsageError, match="no request"):
            requester.await_and_process_response(request_id, cb_req_pub)


def test_disconnect_with_a_reason(polybus_broker: Broker) -> None:
    leaving = client(polybus_broker)
    leaving.connect_to_broker()
    leaving.disconnect(DisconnectReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "failed connection to database")
    for use in (
        lambda: leaving.disconnect(),
        lambda: leaving.publish_message("x", b""),
        lambda: leaving.subscribe("x", cb),
    ):
        with pytest.raises(BusClosed, match="connect_to_broker"):
            use()


def test_refusals_are_raised(polybus_broker: Broker) -> None:
    with connected(client(polybus_broker)) as one:
        twin = TBusClient(one._client_id, "127.0.0.1", polybus_broker.ports["tbus"])
        with pytest.raises(ConnectRefused):
            twin.connect_to_broker()
        with pytest.raises(UsageError, match="disconnect first"):
            one.connect_to_broker()
        with pytest.raises((SubscribeRefused, UsageError)):
            one.subscribe("a/#/b", cb)


# --- values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "data"), [("test", b"\x04test"), ("", b"\0"), (42, b"\x0242"), ("ü", b"\x02\xc3\xbc")]
)
def test_strings(value: object, data: bytes) -> None:
    assert encode_string(value) == data
    assert decode_string(data + b"more") == (str(value), len(data))


def test_numbers() -> None:
    assert (encode_2_bytes(258), decode_2_bytes(b"\x01\x02\x03")) == (b"\x01\x02", 258)
    assert (encode_4_bytes(258), decode_4_bytes(b"\0\0\x01\x02")) == (b"\0\0\x01\x02", 258)
    assert (encode_var_len_int(321), decode_var_len_int(b"\xc1\x02\xff")) == (b"\xc1\x02", (321, 2))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: encode_2_bytes(70_000),
        lambda: encode_4_bytes(-1),
        lambda: encode_var_len_int(1 << 28),
        lambda: decode_2_bytes(b"\0"),
        lambda: decode_string(b"\x05abc"),
        lambda: decode_string(b"\x01\xff"),
        lambda: decode_var_len_int(b"\xff"),
        lambda: encode_string("\ud800"),
    ],
)
def test_wrong_values_are_named(wrong: object) -> None:
    with pytest.raises(UsageError):
        wrong()  # type: ignore[operator]
