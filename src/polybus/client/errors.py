"""What a user of the client can run into. The type says what happened, the text says why."""

from polybus.errors import PolybusError, UsageError


class ClientError(PolybusError):
    """Root of the errors of a client's connection and its operations."""


class ConnectionFailed(ClientError):
    """The broker could not be reached: address, network, TLS or a broker that does not answer."""


class ReasonedError(ClientError):
    """The broker gave a reason: `reason_code` as on the wire, `reason` in words."""

    def __init__(self, text: str, reason_code: int, reason: str) -> None:
        super().__init__(f"{text}: {reason}")
        self.reason_code = reason_code
        self.reason = reason


class ConnectRefused(ReasonedError):
    """The broker answered the connect with a refusal."""

    def __init__(self, reason_code: int, reason: str) -> None:
        super().__init__("the broker refused the connection", reason_code, reason)


class ConnectionLost(ReasonedError):
    """An established connection ended without our asking. `reason_code` is 0 if none was given."""

    def __init__(self, reason: str, reason_code: int = 0) -> None:
        super().__init__("the connection was lost", reason_code, reason)


class PublishRefused(ReasonedError):
    """A message was not accepted: by the broker, or because it exceeds what the broker announced."""

    def __init__(self, topic: str, reason_code: int, reason: str) -> None:
        super().__init__(f"publish to {topic!r} was refused", reason_code, reason)
        self.topic = topic


class SubscribeRefused(ReasonedError):
    def __init__(self, topic_filter: str, reason_code: int, reason: str) -> None:
        super().__init__(f"subscription to {topic_filter!r} was refused", reason_code, reason)
        self.topic_filter = topic_filter


class UnsubscribeRefused(ReasonedError):
    def __init__(self, topic_filter: str, reason_code: int, reason: str) -> None:
        super().__init__(f"the end of the subscription to {topic_filter!r} was refused", reason_code, reason)
        self.topic_filter = topic_filter


class OperationTimeout(ClientError, TimeoutError):
    """No answer in time. The text says whether the operation may still take effect."""


class BusClosed(ClientError, UsageError):
    """The bus was used before it was connected or after it was closed."""


class RequestFailed(ClientError):
    """A request ended without an answer; the type says how. `reason` is in the words of whoever ended it."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"request to {topic!r}: {reason}")
        self.topic = topic
        self.reason = reason


class RequestTimeout(RequestFailed, TimeoutError):
    """Its time passed, waiting or working."""


class RequestCanceled(RequestFailed):
    """It was canceled: with `PendingRequest.cancel`, or by a clean start of the same client."""


class RequestDeleted(RequestFailed):
    """It waited in the broker, and the broker's storage was full (TB-13)."""


class NotDelivered(RequestFailed):
    """There is no service, and it may not wait; or nobody may or can take it."""


class ServiceError(RequestFailed):
    """The service could not do it; `reason` is what the service said."""
