"""Any MQTT broker as a Spark source, at least once. `docs/decisions/0009-mqtt-source.md` says how and why."""
