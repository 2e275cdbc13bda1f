"""Async tests, and the brokers that the client is tried against."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.brokers import KINDS, Broker, running_broker
from tests.client.certificates import Certificates


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests, each in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=KINDS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Broker]:
    """Shared by a module's tests: use `unique` names."""
    with running_broker(request.param, tmp_path_factory.mktemp("broker"), certificates) as broker:
        yield broker


@pytest.fixture(params=KINDS)
def own_broker(request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates) -> Iterator[Broker]:
    """For a test that stops and starts it."""
    with running_broker(request.param, tmp_path, certificates) as broker:
        yield broker


@pytest.fixture(scope="module", params=KINDS)
def guarded_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Broker]:
    """Lets only `USER` in, with `PASSWORD`."""
    folder = tmp_path_factory.mktemp("guarded")
    with running_broker(request.param, folder, certificates, wants_login=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def polybus_broker(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Broker]:
    """Shared by a module's tests: use `unique` names."""
    with running_broker("polybus", tmp_path_factory.mktemp("polybus"), certificates) as broker:
        yield broker


@pytest.fixture(scope="module")
def mosquitto_broker(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Broker]:
    with running_broker("mosquitto", tmp_path_factory.mktemp("mosquitto"), certificates) as broker:
        yield broker


WAYS = ["tbus-tbus", "mqtt-mqtt", "tbus-mqtt", "mqtt-tbus", "mosquitto"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The addresses at which a service and a requester connect."""
    if request.param == "mosquitto":
        url = request.getfixturevalue("mosquitto_broker").url()
        return url, url
    broker = request.getfixturevalue("polybus_broker")
    listeners = {"tbus": "tbus", "mqtt": "tcp"}
    service, requester = (listeners[word] for word in request.param.split("-"))
    return broker.url(service), broker.url(requester)


@pytest.fixture
def own_polybus(tmp_path: Path, certificates: Certificates) -> Iterator[Broker]:
    """For a test that kills it."""
    with running_broker("polybus", tmp_path, certificates) as broker:
        yield broker
