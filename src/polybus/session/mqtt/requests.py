"""Managed requests, waiting and priority in the words of MQTT 5.0 (MQ-05).

User properties say what MQTT has no words for:

    polybus-request   in a PUBLISH with a Response Topic: words of `managed`, `priority`, `waiting`, or
                      `cancel` alone, divided by commas; towards a service: `managed` or `cancel`
    polybus-message   in any other PUBLISH: words of `priority`, `waiting`
    polybus-service   in a SUBSCRIBE: how many requests this subscription takes at once, or `yes`
    polybus-status    how a request ended (`Status`), towards the requester; `error` from a service

A service answers by publishing to the Response Topic it was given, which names the request.
"""

from typing import Final

import msgspec

from polybus.broker.lifecycle import RequestState
from polybus.broker.message import Message, MessageProperties
from polybus.broker.request import Request
from polybus.broker.services import AS_THE_RULE_SAYS
from polybus.broker.sessions import Session
from polybus.errors import PolybusError
from polybus.wire.mqtt.packets import Properties, ReasonCode

REQUEST: Final = "polybus-request"
MESSAGE: Final = "polybus-message"
SERVICE: Final = "polybus-service"
STATUS: Final = "polybus-status"
OWN: Final = frozenset({REQUEST, MESSAGE, SERVICE, STATUS})
ANSWERS: Final = "$polybus/answers/"
MAX_CONCURRENCY: Final = 65_535
ERROR: Final = "error"

STATUSES: Final = {
    RequestState.ANSWERED: "answered",
    RequestState.ANSWER_STORED: "answered",
    RequestState.ANSWER_NOT_DELIVERED: "not-delivered",
    RequestState.NOT_DELIVERED: "not-delivered",
    RequestState.CANCELED: "canceled",
    RequestState.TIMED_OUT: "timed-out",
    RequestState.ERROR: ERROR,
    RequestState.DELETED: "deleted",
}


class Wishes(msgspec.Struct, frozen=True):
    """What a publisher wants beyond MQTT."""

    managed: bool = False
    cancel: bool = False
    priority: bool = False
    waiting: bool = False


NONE: Final = Wishes()
CANCEL: Final = Wishes(cancel=True)


class Unwelcome(PolybusError):
    """A publish or subscription that is not taken, for a reason its acknowledgement can give.

    At QoS 0 there is no acknowledgement; `ends_qos_0` says whether it has to be the end then.
    """

    def __init__(self, reason_code: ReasonCode, text: str = "", *, ends_qos_0: bool = False) -> None:
        super().__init__(text)
        self.reason_code = reason_code
        self.text = text
        self.ends_qos_0 = ends_qos_0


def wishes(properties: Properties) -> Wishes:
    """Raises Unwelcome for words nobody knows."""
    found = NONE
    for name, value in properties.user_properties:
        if name not in (REQUEST, MESSAGE):
            continue
        if found is not NONE:
            raise _wrong(f"{REQUEST} or {MESSAGE} once, not more")
        if name == REQUEST:
            found = _parse(name, value, {"managed", "cancel", "priority", "waiting"})
            if found != CANCEL and (found.cancel or not found.managed):
                raise _wrong(f"{REQUEST} needs managed, or cancel alone, not {value[:80]!r}")
            if properties.response_topic is None and found.managed:
                raise _wrong("a managed request needs a Response Topic")
        else:
            found = _parse(name, value, {"priority", "waiting"})
    return found


def concurrency(properties: Properties) -> int:
    """How many requests a subscription takes at once; 0: it is no service."""
    for name, value in properties.user_properties:
        if name == SERVICE:
            if value == "yes":
                return AS_THE_RULE_SAYS
            # Not more digits than it needs: `int` refuses thousands of them.
            if len(value) <= 5 and value.isascii() and value.isdigit() and 0 < int(value) <= MAX_CONCURRENCY:
                return int(value)
            raise _wrong(f"{SERVICE} is yes or a number from 1 to {MAX_CONCURRENCY}, not {value[:80]!r}")
    return 0


def to_service(request: Request) -> Message:
    """A request as its service gets it: the Response Topic names it, whatever the requester's is."""
    said = request.message.properties
    address = answer_topic(request)
    correlation = said.correlation_data
    return Message(
        request.topic,
        request.message.payload,
        priority=request.message.priority,
        expires_at=request.deadline,
        properties=MessageProperties(
            said.payload_is_text,
            said.content_type,
            address,
            address[len(ANSWERS) :].encode() if correlation is None else correlation,
            (*_foreign(said), (REQUEST, "managed")),
        ),
        origin=request.client_id,
    )


def cancel_to_service(request: Request) -> Message:
    """Tells a service to send no answer: the same without payload, and another word."""
    message = to_service(request)
    properties = msgspec.structs.replace(message.properties, user_properties=((REQUEST, "cancel"),))
    return msgspec.structs.replace(message, payload=b"", expires_at=None, properties=properties)


def to_requester(request: Request, response_topic: str) -> Message:
    """How a request ended, as its requester gets it at its Response Topic."""
    asked = request.message
    said = request.answer_properties
    is_answered = request.is_answered
    status = (STATUS, STATUSES[request.state])
    return Message(
        response_topic,
        (request.answer or b"") if is_answered else request.reason.encode(),
        asked.qos,
        priority=asked.priority,
        properties=MessageProperties(
            said.payload_is_text if is_answered else True,
            said.content_type if is_answered else None,
            None,
            asked.properties.correlation_data,
            (*_foreign(said), status) if is_answered else (status,),
        ),
    )


def too_large(message: Message) -> Message:
    """What a requester gets instead of an answer larger than it takes."""
    correlation = message.properties.correlation_data
    properties = MessageProperties(True, None, None, correlation, ((STATUS, "not-delivered"),))
    payload = b"the answer is larger than this client takes"
    return msgspec.structs.replace(message, payload=payload, properties=properties)


def is_error(properties: MessageProperties) -> bool:
    """A service says that it could not do what it was asked. Raises Unwelcome for other words."""
    words = {value for name, value in properties.user_properties if name == STATUS}
    if words - {ERROR}:
        raise _wrong(f"{STATUS} takes {ERROR}; not {min(words - {ERROR})[:80]!r}")
    return bool(words)


def answer_topic(request: Request) -> str:
    return f"{ANSWERS}{request.serial:x}"


def answered(topic: str, session: Session) -> Request | None:
    """The request in this service's hand that an answer's topic names."""
    try:
        serial = int(topic[len(ANSWERS) :], 16)
    except ValueError:
        return None
    return (session.in_hand or {}).get(serial)


def _parse(name: str, value: str, known: set[str]) -> Wishes:
    words = {word.strip() for word in value.split(",")}
    unknown = words - known
    if unknown:
        raise _wrong(f"{name} takes {', '.join(sorted(known))}; not {min(unknown)[:80]!r}")
    return Wishes(**dict.fromkeys(words, True))


def _wrong(text: str) -> Unwelcome:
    return Unwelcome(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, text, ends_qos_0=True)


def _foreign(properties: MessageProperties) -> tuple[tuple[str, str], ...]:
    """User properties that are not ours."""
    return tuple(pair for pair in properties.user_properties if pair[0] not in OWN)
