"""Real `polybus serve` processes for tests with real peers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.cpp import build_cpp
from tests.client.certificates import Certificates
from tests.e2e.processes import EVERY_KIND, Served
from tests.net.conftest import certificates, pytest_pyfunc_call

__all__ = ["certificates", "pytest_pyfunc_call"]

StartBus = Callable[..., Served]


@pytest.fixture
def start_bus(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[StartBus]:
    """Starts a bus with a configuration of the test's own."""
    with ExitStack() as stack:

        def start(
            text: str = "",
            kinds: tuple[str, ...] = ("tcp",),
            folder: Path | None = None,
            data: Path | None = None,
        ) -> Served:
            served = Served(folder or tmp_path_factory.mktemp("bus"), certificates, text, kinds, data)
            return stack.enter_context(served)

        yield start


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Served]:
    """Shared by a module's tests, with every kind of listener: use `unique` names.

    Whatever the tests do to it, it survives, and its log holds no traceback.
    """
    settings = '[mqtt]\nsys_interval_s = 1\nresponse_information = "answers/"\n'
    with Served(tmp_path_factory.mktemp("bus"), certificates, settings, EVERY_KIND) as served:
        yield served
        served.check_health()


@pytest.fixture(scope="session")
def cpp_peer() -> Path:
    """The C++ twin of `tests.e2e.python_peer`, built when it is not up to date."""
    return build_cpp("polybus-peer")
