"""What the broker keeps count of, compared with what there is."""

from polybus.broker.broker import Broker
from polybus.broker.lifecycle import ENDS, RequestState
from polybus.broker.request import Request
from polybus.broker.services import Instance
from polybus.broker.storage import Kind, Storage, Stored

WITH_AN_INSTANCE = (RequestState.DELIVERED, RequestState.ANSWERED)


def check_requests(broker: Broker) -> None:
    """At rest, when nothing is in the lanes."""
    requests = broker.requests
    assert all(requests.under_way.values()), "a client without requests is not listed"
    for owner, mine in requests.under_way.items():
        assert all(r.owner == owner and r.packet_id == i for i, r in mine.items())
    everyone = [r for mine in requests.under_way.values() for r in mine.values()]
    assert requests.count == len(everyone)
    sizes = [r.message.size_bytes() + _answer_bytes(r) for r in everyone]
    assert requests.size_bytes == sum(sizes)
    for request in everyone:
        assert request.state is not RequestState.NEW
        assert request.state is not RequestState.ANSWERED
        assert (request.instance is not None) == (request.state is RequestState.DELIVERED)
    _check_storage(broker, everyone)
    _check_instances(broker, everyone)
    _check_timers(broker, everyone)


def stored_in(storage: Storage, clients: list[str]) -> list[Stored]:
    """Everything in storage, found as its users find it."""
    kinds = (Kind.MESSAGE, Kind.REQUEST)
    waiting = [s for kind in kinds for path in ("#", "$memoryLimit/#") for s in storage.matching(kind, path)]
    return waiting + [s for client_id in clients for s in storage.outcomes_of(client_id)]


def check_storage(storage: Storage, entries: list[Stored]) -> None:
    """This is what it holds, and it knows."""
    assert len(set(entries)) == len(entries) == storage.count
    assert storage.size_bytes == sum(s.size_bytes for s in entries)
    assert storage.counts == {kind: sum(s.kind is kind for s in entries) for kind in Kind}
    assert storage.message_bytes == sum(s.size_bytes for s in entries if s.kind is Kind.MESSAGE)
    assert storage.count <= storage.max_messages
    assert storage.size_bytes <= storage.max_bytes


def _check_storage(broker: Broker, everyone: list[Request]) -> None:
    requests = broker.requests
    entries = stored_in(broker.storage, list(requests.under_way))
    check_storage(broker.storage, entries)
    line = stored_in(requests.line, [])
    check_storage(requests.line, line)
    assert all(s.kind is Kind.REQUEST for s in line)
    unread = stored_in(requests.unread, list(requests.under_way))
    check_storage(requests.unread, unread)
    assert all(s.kind is Kind.OUTCOME for s in unread)
    ends = stored_in(requests.ends, list(requests.under_way))
    check_storage(requests.ends, ends)
    assert all(s.kind is Kind.OUTCOME for s in ends)
    kinds = {RequestState.STORED: Kind.REQUEST, RequestState.ANSWER_STORED: Kind.OUTCOME}
    for request in everyone:
        stored = request.stored
        has_hope = broker.subscriptions.desk(broker.subscriptions.route_of(request.topic)).has_hope(
            request.unable
        )
        waits_its_turn = request.state is RequestState.STORED and has_hope
        kept_in = ends if request.state in ENDS else line if waits_its_turn else entries
        if stored in unread:
            session = broker.registry.sessions[request.client_id]
            assert session.link is not None, "nobody who is gone has anything to read"
            kept_in = unread
        kind = Kind.OUTCOME if request.state in ENDS else kinds.get(request.state)
        assert (stored.kind if stored is not None else None) is kind
        if stored is not None:
            assert stored in kept_in
            assert stored.request is request
            assert stored.size_bytes == request.message.size_bytes() + _answer_bytes(request)
    assert {r for r in everyone if r.stored in line and (r.late or r.unable)} <= set(requests._choosy)
    assert {r.stored for r in requests._choosy} <= set(line)
    owned = [s for s in entries + line + unread + ends if s.kind is not Kind.MESSAGE]
    assert {s.request for s in owned} == {r for r in everyone if r.stored is not None}


def _check_instances(broker: Broker, everyone: list[Request]) -> None:
    given: dict[Instance, set[Request]] = {}
    for request in everyone:
        if request.instance is not None:
            given.setdefault(request.instance, set()).add(request)
    sessions = set(broker.registry.sessions.values()) | {i.session for i in given}
    instances = {i for s in sessions for i in (s.instances or {}).values()} | given.keys()
    for instance in instances:
        assert instance.busy == len(given.get(instance, ()))
    for session in sessions:
        mine = {r for i, rs in given.items() if i.session is session for r in rs}
        assert set((session.in_hand or {}).values()) == mine
        assert session.link is not None or not mine, "nobody who is away has requests in hand"


def _check_timers(broker: Broker, everyone: list[Request]) -> None:
    targets = list(broker.timers._targets.values())
    assert len(set(map(id, targets))) == len(targets), "one timer for each"
    for request in everyone:
        has_ended = request.state in ENDS
        assert (request in targets) != has_ended
        assert (request.stored in targets) == has_ended
        attempt = request.attempt
        assert attempt is None or (attempt in targets and request.state is RequestState.DELIVERED)
        if request.state is RequestState.DELIVERED:
            rule = broker.subscriptions.desk(broker.subscriptions.route_of(request.topic)).rule
            assert (attempt is not None) == bool(rule.answer_within_s)
    messages = [s for s in stored_in(broker.storage, []) if s.kind is Kind.MESSAGE]
    assert all((s in targets) == (s.message.expires_at is not None) for s in messages)
    known = {id(r) for r in everyone} | {id(r.stored) for r in everyone} | {id(r.attempt) for r in everyone}
    known |= {id(s) for s in messages}
    others = [t for t in targets if id(t) not in known]
    assert not [t for t in others if type(t).__name__ in ("Request", "Attempt", "Stored")], "left behind"


def _answer_bytes(request: Request) -> int:
    return 0 if request.answer is None else len(request.answer) + request.answer_properties.size_bytes()
