"""The errors Polybus raises. The type says who is at fault."""


class PolybusError(Exception):
    """Root of every error this package raises on purpose."""


class UsageError(PolybusError):
    """Our caller is at fault: a bad argument, option or configuration value."""


class ConfigError(UsageError):
    """A configuration that cannot be used. The text names the file, the key and the remedy."""


class PeerError(PolybusError):
    """The other side of a connection broke its protocol.

    `reason_code` is what the protocol says to answer with; `rule` cites the rule that was broken
    (for example ``MQTT-3.1.0-2``), so that logs and tests can name it.
    """

    def __init__(self, reason_code: int, text: str, rule: str = "") -> None:
        super().__init__(f"{text} [{rule}]" if rule else text)
        self.reason_code = reason_code
        self.text = text
        self.rule = rule
