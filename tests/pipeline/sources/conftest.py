"""Real brokers for the sources."""

from tests.client.conftest import broker, certificates, guarded_broker

__all__ = ["broker", "certificates", "guarded_broker"]
