"""A broker among others (TB-15): its neighbours, what each wants, and what it is given.

A neighbour is a session whose subscriptions are what its clients want. So everything the core does for a client
it does for a neighbour: plans, queues, windows, services that are busy, durable rows. What is different:

- what came from a neighbour goes to clients and never to a neighbour (`Message.origin` begins with the mark);
- a neighbour is told what clients here want, once for each filter, when that changes (`interest`);
- a message that waits here is offered to neighbours that have someone for it (`offers`);
- every broker has every retained message; the newest value wins (`broker.stamps`).

Links are `session.tbus.neighbor`'s, calls `net.calling`'s.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from polybus.broker import events
from polybus.broker.broker import Broker
from polybus.broker.events import emit
from polybus.broker.message import Message
from polybus.broker.neighbors import Neighborhood
from polybus.broker.services import Desk
from polybus.broker.sessions import NEIGHBOR_MARK, Session, Subscription
from polybus.broker.shared import SharedGroup
from polybus.broker.storage import Kind, Stored
from polybus.broker.subscriptions import Plan, Route
from polybus.broker.taken import Taken
from polybus.broker.topics import SHARE_PREFIX, parse_filter
from polybus.mesh.interest import Interest, News, Want
from polybus.mesh.membership import Membership
from polybus.mesh.offers import Answer, Offer, Offers
from polybus.mesh.refusals import Refusals

DESTINATION_MARK: Final = "\x03"
"""Between a broker's id and the requester in a ResponseDestination. No client id has it."""
RETAINED: Final = "#"
NEIGHBORS: Final = "$neighbors"
"""A request there is answered with who the neighbours are."""
NEVER_REPLAY: Final = 2


class MeshOptions(msgspec.Struct, frozen=True):
    own_id: str
    """`ip:port`, where other brokers call this one."""
    token: str = ""
    """What a broker shows when it calls; empty: none."""
    is_open: bool = True
    """Other brokers may call at all."""
    most: int = 64
    keep_s: float = 24 * 3600.0
    """How long what is for a neighbour that is gone is kept."""
    keep_alive_s: int = 30


class NeighborLink(Protocol):
    def announce(self, news: News) -> None:
        """Tell the neighbour what clients here want."""

    def announced_all(self) -> None:
        """That was everything: what was not named is wanted no more."""

    def probe(self) -> None:
        """Find out whether it is still there."""


class Mesh(Neighborhood):
    """The single owner of neighbours."""

    def __init__(
        self, broker: Broker, options: MeshOptions, *, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """`on_change`: there may be someone to call."""
        self.options = options
        self.members = Membership(options.own_id, most=options.most, keep_s=options.keep_s)
        self.interest = Interest(broker.subscriptions)
        self.offers = Offers(broker.dispatcher)
        self.refusals = Refusals()
        self.on_change = on_change
        self.prefix = f"{options.own_id}{DESTINATION_MARK}"
        """How the ResponseDestinations of clients here begin elsewhere."""
        self._broker = broker
        self._links: dict[Session, NeighborLink] = {}
        self._unnamed: dict[Session, set[str]] = {}
        """Filters that a neighbour had before and has not named again since its link is up."""
        self._awaiting: dict[str, dict[Session, None]] = {}
        """Neighbours that found services busy, by the filters of those."""
        broker.join_mesh(self)
        broker.subscriptions.on_interest = self._on_interest
        broker.requests.on_awaited = self._services_are_free
        for session in broker.registry.sessions.values():
            if session.is_neighbor:  # of before the broker was started
                self._know(session)
                self.members.add(name_of(session), broker.now)

    # -- links --------------------------------------------------------------------------------------

    def is_linked(self, peer_id: str) -> bool:
        session = self._broker.registry.sessions.get(NEIGHBOR_MARK + peer_id)
        return session is not None and session in self._links

    def link_of(self, peer_id: str) -> NeighborLink | None:
        session = self._broker.registry.sessions.get(NEIGHBOR_MARK + peer_id)
        return None if session is None else self._links.get(session)

    def link_up(self, session: Session, link: NeighborLink) -> None:
        """The greeting is done: tell the neighbour all it has to know."""
        broker = self._broker
        self._know(session)
        self._links[session] = link
        self._unnamed[session] = set(session.subscriptions)
        broker.retained.remember_deletions()
        link.announce(list(self.interest.everything().items()))
        link.announced_all()
        broker.dispatcher.start_replay(session, RETAINED, broker.retained.replay_all())
        broker.greeted(session)
        self._offer_everything(session)
        self.on_change()
        broker.stir()

    def link_down(self, session: Session) -> None:
        """Before the core hears of it."""
        if self._links.pop(session, None) is None:
            return
        self._unnamed.pop(session, None)
        self.refusals.forget(session)
        for waiting in self._awaiting.values():
            waiting.pop(session, None)
        self._broker.dispatcher.stop_replay(session, RETAINED)
        for offer in self.offers.lost(session):
            self._offer_again(offer)
        if not self._links:
            self.interest.stop()
        self.members.unlinked(name_of(session), self._broker.now)
        self.on_change()

    def _know(self, session: Session) -> None:
        if session not in self.sessions:
            self.sessions = (*self.sessions, session)

    def housekeep(self, now: float) -> None:
        """Once a second or so."""
        self._broker.dispatcher.now = now
        if self.offers.go_on_all():  # there may be room for another reason than an answer
            self._broker.stir()
        for path in list(self._awaiting):
            self._services_are_free(path)  # whatever else there was no room for
        for peer_id in self.members.forget(now):
            emit(events.NEIGHBOR_FORGOTTEN, neighbor=peer_id, reason=f"not seen for {self.options.keep_s:g} s")
        if any(self._broker.registry.sessions.get(s.client_id) is not s for s in self.sessions):
            known = self._broker.registry.sessions
            self.sessions = tuple(s for s in self.sessions if known.get(s.client_id) is s)

    def references(self) -> str:
        return ";".join(self.members.others())

    # -- interest -----------------------------------------------------------------------------------

    def _on_interest(self, path: str) -> None:
        if self.refusals:
            self._tell_again(path)
        self.interest.changed(path)
        if self.interest.has_news:
            self._broker.has_news = True
            self._broker.stir()

    def is_ready(self, session: Session) -> None:
        if self.refusals and not session.is_neighbor:
            for path in {subscription.path for subscription in session.subscriptions.values()}:
                self._tell_again(path)

    def _tell_again(self, path: str) -> None:
        """What is wanted there is the same, but there is someone for it."""
        again = self.interest.said(path)
        for neighbor in self.refusals.ready(path) if again else ():
            self._links[neighbor].announce(again)
            self._broker.stir()

    def services_moved(self, session: Session) -> None:
        for instance in (session.instances or {}).values():
            if not session.is_neighbor:
                self._on_interest(instance.path)

    def tell_news(self) -> None:
        news = self.interest.news()
        if news:
            for link in self._links.values():
                link.announce(news)

    def wanted(self, session: Session, topic_filter: str, want: Want) -> None:
        """A neighbour's clients want this. Raises InvalidTopic."""
        broker = self._broker
        limits = broker.limits
        named = parse_filter(topic_filter, limits.topic_levels, limits.topic_bytes)
        self._unnamed.get(session, set()).discard(topic_filter)
        serves = want.concurrency if named.group is None else 0
        instance = (session.instances or {}).get(topic_filter)
        if instance is not None:
            instance.is_shut = False
        subscription = Subscription(named.path, named.group, want.qos, serves=serves)
        broker.subscribe(session, topic_filter, subscription, retain_handling=NEVER_REPLAY)
        if broker.storage.counts[Kind.MESSAGE]:
            for stored in list(broker.storage.matching(Kind.MESSAGE, named.path)):
                self.offers.has_come(stored, session)
                if not self.offers.is_open(stored):
                    self.offers.make(stored, session, () if named.group is None else (topic_filter,))
        self.offers.go_on(session, is_ready=True)

    def unwanted(self, session: Session, topic_filter: str) -> None:
        self._unnamed.get(session, set()).discard(topic_filter)
        self._broker.unsubscribe(session, topic_filter)

    def named_all(self, session: Session) -> None:
        for topic_filter in self._unnamed.pop(session, set()):
            self._broker.unsubscribe(session, topic_filter)

    # -- messages -----------------------------------------------------------------------------------

    def is_new(self, session: Session, message: Message) -> bool:
        """Whether a tracked message has not been taken before; from now on it has."""
        broker = self._broker
        broker.stamps.see(message.stamp, broker.now + broker.ledger.offset)
        taken = session.taken
        if taken is None:
            taken = session.taken = Taken()
        if not taken.add(message.stamp, is_priority=message.priority):
            broker.stats.crossed_twice += 1
            return False
        if session.kept:
            broker.ledger.received_changed(session)
        return True

    def missed_before(self, session: Session, message: Message) -> tuple[str, ...]:
        """Of one that is not new: the shares that nobody here took."""
        assert session.taken is not None
        return session.taken.missed(message.stamp, is_priority=message.priority)

    def missed(self, session: Session, message: Message, shares: tuple[str, ...], *, is_taken: bool) -> None:
        """Nobody here took these shares of a new message, or (`is_taken`) anything of it."""
        assert session.taken is not None
        if is_taken:
            session.taken.miss(message.stamp, shares, is_priority=message.priority)
        else:
            session.taken.forget(message.stamp, is_priority=message.priority)

    def deliver_shares(self, message: Message, shares: tuple[str, ...]) -> tuple[str, ...]:
        """Give a neighbour's message to the shared groups it was chosen for; those that have no member here."""
        broker = self._broker
        missed: list[str] = []
        for name in shares:
            if name.startswith(SHARE_PREFIX):
                group = self._group(name)
                if group is None or not broker.dispatcher.deliver_shared(group, message, only_local=True):
                    missed.append(name)
        return tuple(missed)

    def take_offer(self, session: Session, route: Route, message: Message, shares: tuple[str, ...]) -> Answer:
        """A neighbour's message that waits for someone to take it. Raises InvalidTopic."""
        broker = self._broker
        broker.drain()  # who is there is there after what came before
        broker.dispatcher.now = broker.now
        answer = Answer.NOBODY
        if not shares or "" in shares:
            takers = broker.subscriptions.plan(route).takers(message.qos)
            if any(_is_ready(taker, qos) for taker, qos in takers):
                broker.publish(route, message)
                answer = Answer.TAKEN
            elif takers:
                answer = Answer.BUSY
        for group in map(self._group, filter(None, shares)):
            local = [s for s in (group.members if group else ()) if not s.is_neighbor and s.link is not None]
            if group is not None and any(_is_ready(s, message.qos and group.members[s].qos) for s in local):
                broker.dispatcher.deliver_shared(group, message, only_local=True)
                answer = Answer.TAKEN
            elif local and answer is Answer.NOBODY:
                answer = Answer.BUSY
        if answer is not Answer.TAKEN:
            self.refusals.note(session, message.topic)
        return answer

    def _group(self, name: str) -> SharedGroup | None:
        """By its whole name, `$share/…`."""
        limits = self._broker.limits
        named = parse_filter(name, limits.topic_levels, limits.topic_bytes)
        return self._broker.subscriptions.group(named.group or "", named.path)

    def acknowledged(
        self, session: Session, packet_id: int, answer: Answer, missed: tuple[str, ...] = ()
    ) -> None:
        """MSGACK. `missed`: the shares that had no member there; none: all of them."""
        broker = self._broker
        broker.dispatcher.now = broker.now
        sent = session.inflight.get(packet_id)
        broker.dispatcher.acknowledge(session, packet_id)
        if not self.offers.is_offer(session, packet_id):
            if sent is not None and answer is not Answer.TAKEN:
                delivery = sent.one(packet_id)
                shares = tuple(s for s in delivery.shares if not missed or s in missed)
                self._choose_again(session, delivery.message, shares)
            return
        offer = self.offers.answered(session, packet_id, answer)
        if offer is not None and answer is Answer.TAKEN:
            broker.waiting.take(offer.stored)
        elif offer is not None and not offer.open:
            self._offer_again(offer)
        self.offers.go_on(session)

    def _choose_again(self, session: Session, message: Message, shares: tuple[str, ...]) -> None:
        """The member of a shared group there has gone meanwhile."""
        broker = self._broker
        for group in map(self._group, filter(None, shares)):
            if group is not None:
                broker.dispatcher.deliver_shared(group, message, besides=session)

    # -- what waits ---------------------------------------------------------------------------------

    def offer(self, stored: Stored, plan: Plan) -> None:
        if not self._links:
            return
        for session, (_, shares) in self._broker.dispatcher.crossings(plan, stored.message).items():
            self.offers.make(stored, session, shares)

    def is_offered(self, stored: Stored) -> bool:
        return self.offers.is_open(stored)

    def forget(self, stored: Stored) -> None:
        self.offers.forget(stored)

    def _offer_again(self, offer: Offer) -> None:
        """Nobody has it now: there may be someone here meanwhile, or at another neighbour."""
        stored = offer.stored
        waiting = self._broker.waiting
        waiting.release_one(stored)
        if stored.home is not None:
            subscriptions = self._broker.subscriptions
            self.offer(stored, subscriptions.plan(subscriptions.route_of(stored.message.topic)))

    def _offer_everything(self, session: Session) -> None:
        """What waited while a neighbour was away that had subscribed before."""
        for topic_filter, subscription in list(session.subscriptions.items()):
            for stored in list(self._broker.storage.matching(Kind.MESSAGE, subscription.path)):
                if not self.offers.is_open(stored):
                    shares = () if subscription.group is None else (topic_filter,)
                    self.offers.make(stored, session, shares)

    # -- services -----------------------------------------------------------------------------------

    def await_services(self, session: Session, desk: Desk) -> None:
        """A neighbour found nobody free here: it is told when someone is."""
        for path in {instance.path for instance in desk.instances}:
            self._awaiting.setdefault(path, {})[session] = None
            self._broker.requests.awaited.add(path)

    def doubt_services(self, topic: str) -> None:
        """A neighbour found nobody at all."""
        self.interest.doubt(topic)

    def _services_are_free(self, path: str) -> None:
        self._broker.requests.awaited.discard(path)
        again = self.interest.said(path)
        for session in self._awaiting.pop(path, {}):
            link = self._links.get(session)
            if link is not None:
                link.announce(again)
        self._broker.stir()

    # -- for people ---------------------------------------------------------------------------------

    def status(self) -> list[dict[str, object]]:
        """Every broker that is known, as `polybus ctl neighbors` shows it."""
        rows: list[dict[str, object]] = []
        sessions = self._broker.registry.sessions
        for member in self.members.members.values():
            session = sessions.get(NEIGHBOR_MARK + member.id)
            rows.append(
                {
                    "id": member.id,
                    "linked": member.is_linked,
                    "why": member.told,
                    "filters": 0 if session is None else len(session.subscriptions),
                    "waiting": 0 if session is None else session.load(),
                    "dropped": 0 if session is None else session.dropped,
                }
            )
        return rows


def _is_ready(session: Session, qos: int) -> bool:
    """A message of this QoS is not lost on its way to this client, as far as that is known."""
    return bool(qos) or (session.link is not None and not session.link.blocked)


def name_of(session: Session) -> str:
    """The id of a neighbour, as people know it."""
    return session.client_id.removeprefix(NEIGHBOR_MARK)
