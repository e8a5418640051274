"""Realms: the parts of a shared database, each owned by one broker, and the routing of requests to them.

The topics of a database are divided into realms (`--realms`), by a hash of their names. A realm is owned by one broker
at a time: a lease with an epoch in the database, which fences every write (`store/sql/ownership.py`), so that a wrong
decision of this module about who should own what does no harm. Each broker computes, by rendezvous hashing over the
brokers that it knows to be alive, the owner of each realm; takes those of its own that are free; hands over those of
others; and takes any that nobody has taken for a while. Requests for a realm of another broker are answered with
`NotOwner`, which carries the owner's address.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec
from crc32c import crc32c

from towline.broker.broker import Broker
from towline.broker.cluster.common_documents import EVERY_S
from towline.broker.cluster.format_number import LOOK_S as NUMBER_S
from towline.broker.cluster.format_number import FormatNumber
from towline.broker.cluster.gossip import split_address
from towline.broker.cluster.routing import Scope, topics_of
from towline.broker.consume.prefix_subscription import PrefixSubscription
from towline.broker.node import Node
from towline.broker.open_store import sql_settings
from towline.broker.periodic import every
from towline.clock import SYSTEM, Clock, in_slices
from towline.errors import BadRequest, NotFound, NotOwner, TowlineError
from towline.model import PULL_STREAMS, is_pattern
from towline.protocol.cluster import Brokers, ListBrokers, RealmState, realm_of
from towline.protocol.messages import Request
from towline.store.sql import Database, Holder, Ownership, SharedDocuments, SqlStore, prepare_database

if TYPE_CHECKING:
    from towline.broker.consume.member import Member
    from towline.settings import BrokerSettings
    from towline.store import Trimmed

__all__ = ["Realms"]

log = logging.getLogger("towline.cluster")

MAIN: Final = "main"
TAKING: Final = "taking over a realm"
GIVING: Final = "handing over a realm"
LOOK_S: Final = 0.2
SOON_S: Final = 0.05
SHORTEST_S: Final = 0.02
PROBE_S: Final = 0.3
FOLLOW_S: Final = 2.0
PATIENCE_S: Final = 1.0
"""A realm that is free for so long is taken by any broker."""
SETTLE_S: Final = 3.0
"""A broker that has been alive for so long gets its realms."""


class _Store(SqlStore):
    heir = ""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.number: FormatNumber
        self.kept_back: dict[str, bytes] = {}
        """The last of each document that is not written yet."""
        self._catching_up = asyncio.Lock()

    async def save(self, name: str, document: bytes) -> None:
        """Documents that brokers of a version before could not read are kept here while they may take this realm: then
        they begin with their own, and replay what came behind it."""
        if self.number.keeps_back(name):
            self.kept_back.pop(name, None)  # they are written in the order in which they were saved last
            self.kept_back[name] = document
            return
        await self._catch_up()
        await super().save(name, document)

    async def _catch_up(self) -> None:
        """Write the documents that were kept back, once no broker of a version before may come any more. Nothing is
        kept back from then on, so nothing that is written here is older than what is there."""
        if not self.kept_back or self.older_may_come:
            return
        async with self._catching_up:
            while self.kept_back:
                name = next(iter(self.kept_back))
                await super().save(name, self.kept_back[name])
                del self.kept_back[name]

    @property
    def older_may_come(self) -> bool:
        return self.number.older_may_come

    async def retain(self, max_age_us: int, max_bytes: int, pinned: Mapping[str, int]) -> Trimmed:
        """Events that are in no snapshot on the database are replayed from the pull logs: they are kept whole."""
        await self._catch_up()
        if self.older_may_come or self.kept_back:
            pinned = {**pinned, **{stream: self.bounds(stream).first for stream in self.streams(PULL_STREAMS)}}
        return await super().retain(max_age_us, max_bytes, pinned)

    async def trim(self, stream: str, before: int, *, forget: bool = False) -> None:
        """Brokers of a version before know of no floors, and would count from 0."""
        await super().trim(stream, before, forget=forget and not self.older_may_come)

    async def close(self, heir: str = "") -> None:
        try:
            await self._catch_up()
        except TowlineError as error:
            log.error(
                "realm %s: what was kept back is not written: %s; the next start replays it", self.lease.realm, error
            )
        finally:
            await super().close(heir or self.heir)


class Realms:
    """The realms of one broker process."""

    def __init__(self, front: Node, database: Database, number: FormatNumber, clock: Clock = SYSTEM) -> None:
        settings = front.settings
        self.front = front
        self.owned: dict[str, Broker] = {}
        self._settings = settings
        self.database = database
        self.number = number
        self._clock = clock
        self._names = [MAIN, *(f"realm-{number}" for number in range(1, settings.realms))]
        self._holders: dict[str, Holder] = {}
        self._free_since: dict[str, float] = {}
        self._looked_s = 0.0
        """When the owners were last read."""
        self._moving: set[str] = set()
        self._dead: set[str] = set()
        """Owners of realms that were killed, although their leases run on."""
        self._doubted: dict[str, float] = {}
        """Brokers that let a lease run out, and when they were still silent."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._moves: set[asyncio.Task[None]] = set()
        """Tasks that take, hand over or release a realm."""
        self._ownership: Ownership
        self._closing = False
        self._mark = 0
        """The mark of the list of brokers and realms: clients that wait for news are answered when it changes."""
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._telling = True

    @classmethod
    async def open(cls, settings: BrokerSettings) -> Realms:
        database = await prepare_database(sql_settings(settings), max_frame_bytes=settings.max_frame_bytes)
        front = await Node.open_front(settings, SharedDocuments(database))
        number = await FormatNumber.of(database, settings.cluster_gone_s, SYSTEM)
        realms = front.realms = cls(front, database, number)
        return realms

    def start(self, address: str) -> None:
        """Begin to take realms; we are reached at this address by now."""
        self._ownership = Ownership(self.database, self.front.registry.id, address)
        self._spawn("looking after realms", self._work())
        self._repeat(NUMBER_S, "raising the format of the database", self.number.look)
        self._repeat(EVERY_S, "following what other brokers have changed", self.front.follow)

    def _repeat(self, seconds: float, what: str, task: Callable[[], Awaitable[None]]) -> None:
        self._spawn(what, every(seconds, what, task))

    def _spawn(self, what: str, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]] | None = None) -> None:
        tasks = self._tasks if tasks is None else tasks
        task = asyncio.get_running_loop().create_task(self.front.lag.timed(what, work), name=what)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # Routing

    def realm_of(self, topic: str) -> str:
        return self._names[realm_of(topic, len(self._names))]

    def choose(self, request: Request, scope: Scope, members: Mapping[int, Member | PrefixSubscription]) -> Broker:
        """The broker of a request; `NotOwner` if it is not one of ours."""
        subscription = getattr(request, "subscription", 0) if scope.subscription else 0
        if subscription:
            member = members.get(subscription)
            if member is None:
                raise NotFound(f"there is no subscription {subscription} on this connection: attach first")
            if isinstance(member, PrefixSubscription):
                return self._broker(MAIN, "")
            return self._broker(self.realm_of(member.config.topic), member.config.topic)
        topics = topics_of(request) if scope.topic or scope.whole else set()
        if scope.here and not topics:
            self.number.check(request)
            return self.front
        if any(map(is_pattern, topics)):
            if len(self._names) > 1:
                raise BadRequest("a subscription by prefix needs brokers with realms=1")
            return self._broker(MAIN, "")
        realms = {self.realm_of(topic) for topic in topics} or {MAIN}
        if len(realms) > 1:
            raise BadRequest(
                f"the topics {', '.join(sorted(topics))} belong to different realms of the database, and one unit can "
                "only be stored in one: send to them apart, or run the brokers with realms=1"
            )
        [realm] = realms
        if scope.whole and not (scope.topic and topics) and len(self._names) > 1:
            raise BadRequest(f"{scope.whole} brokers with realms=1")
        return self._broker(realm, next(iter(topics), ""))

    def look_first(self, request: Request, broker: Broker) -> Callable[[], Awaitable[None]] | None:
        """The step before a request that makes a topic: a change of the template, at whichever broker, counts from then
        on."""
        known = broker.topics
        if not self._settings.auto_create_topics or all(topic in known for topic in topics_of(request)):
            return None
        return self.front.renew_template

    def _broker(self, realm: str, topic: str) -> Broker:
        broker = self.owned.get(realm)
        if broker is not None:
            return broker
        what, address = f"topic {topic}" if topic else f"realm {realm}", self._address_of(realm)
        if not address:
            silent_s = self._clock.steady_s() - self._looked_s
            raise NotOwner(f"{what} has no broker in this moment: {self._why(silent_s)}")
        raise NotOwner(f"{what} is served by the broker at {address}")

    def _address_of(self, realm: str) -> str:
        """The address of a realm's owner, as far as we know; empty if there is none."""
        if realm in self.owned:
            return self.front.registry.address
        holder, silent_s = self._holders.get(realm), self._clock.steady_s() - self._looked_s
        if holder is None or holder.left_s <= silent_s or holder.owner == self.front.registry.id:
            return ""
        return holder.address

    def _why(self, silent_s: float) -> str:
        """Why nobody has a realm: it is being taken, or the database is away."""
        if self.database.trouble is not None:
            return f"{self.database.trouble}: then all goes on by itself"
        if silent_s > PATIENCE_S:
            label = self.database.label
            return f"the database {label} has not answered for {silent_s:.0f} s. When it does, all goes on by itself"
        return "try again"

    # News for clients

    async def brokers(self, request: ListBrokers) -> Brokers:
        """The brokers and the owner of each realm; if the client knows that already, as soon as it changes."""
        if request.mark == self._mark and request.wait_ms and self._telling:
            await asyncio.wait([self._news], timeout=request.wait_ms / 1000)
        told = self.front.registry.brokers()
        return msgspec.structs.replace(told, realms=self._states(), mark=self._mark)

    def _states(self) -> list[RealmState]:
        return [RealmState(self._address_of(realm), self._epoch_of(realm)) for realm in self._names]

    def _epoch_of(self, realm: str) -> int:
        broker, holder = self.owned.get(realm), self._holders.get(realm)
        seen = 0 if holder is None else holder.epoch
        return max(seen, broker.store.lease.epoch) if broker is not None and isinstance(broker.store, _Store) else seen

    def _note_news(self) -> None:
        """Something may have changed: answer clients that wait for news."""
        states = [(one.id, one.address, one.state) for one in self.front.registry.states()]
        mark = crc32c(msgspec.msgpack.encode((states, self._states())))
        if mark != self._mark:
            self._mark = mark
            self._tell()
            self._news = asyncio.get_running_loop().create_future()

    def end_waiting(self) -> None:
        """Answer all who wait for news, and let nobody wait any more."""
        self._telling = False
        self._tell()

    def _tell(self) -> None:
        if not self._news.done():
            self._news.set_result(None)

    # Takeover and handover

    async def _work(self) -> None:
        while True:
            try:
                await self._look()
            except TowlineError as error:
                log.warning("the realms of the database could not be looked at: %s", error)
            except Exception:
                log.exception("looking after the realms of the database failed")
            await asyncio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """Until we look again: at the latest when the next lease runs out."""
        ending = [holder.left_s for holder in self._holders.values() if 0 < holder.left_s < LOOK_S]
        most_s = SOON_S if self._expects() else LOOK_S
        return max(min(ending, default=most_s), SHORTEST_S)

    def _expects(self) -> bool:
        """Whether a realm is about to be given to us: its broker leaves, or ranks lower."""
        me, settled = self.front.registry.id, self._settled()
        states = {one.id: one for one in self.front.registry.states()}
        for realm in self._names:
            holder = self._holders.get(realm)
            owner = states.get(holder.owner) if holder is not None else None
            if realm in self.owned or owner is None or owner.state not in ("alive", "leaving"):
                continue
            heirs = [one for one in settled if one != owner.id] if owner.state == "leaving" else settled
            if _chosen(realm, heirs) == me:
                return True
        return False

    async def _look(self) -> None:
        self._holders = {holder.realm: holder for holder in await self._ownership.holders()}
        now_s = self._looked_s = self._clock.steady_s()
        alive = [one for one in self.front.registry.states() if one.state == "alive"]
        await self._find_dead()
        self._doubt(now_s)
        settled = self._settled()
        for realm in self._names:
            holder = self._holders.get(realm)
            owner = "" if holder is None else holder.owner
            free = holder is None or holder.left_s <= 0 or holder.heir == self.front.registry.id or owner in self._dead
            since_s = self._free_since.setdefault(realm, now_s) if free else self._free_since.pop(realm, now_s)
            if realm in self._moving:
                continue
            if realm in self.owned:
                heir = _chosen(realm, settled)
                if heir and heir != self.front.registry.id and self.front.registry.id in settled:
                    self._move(realm, GIVING, self._hand_over(realm, heir))
            elif free:
                # A broker that let its lease run out does not live, whatever its last beat said.
                first = _chosen(realm, [one.id for one in alive if one.id != owner]) == self.front.registry.id
                if first or now_s - since_s > PATIENCE_S:
                    self._move(realm, TAKING, self._take(realm, owner if owner in self._dead else ""))
        self._note_news()

    def _settled(self) -> list[str]:
        """The brokers that may be given their realms."""
        alive = self.front.registry.alive()
        return [one.id for one in alive if one.uptime_s > SETTLE_S and one.id not in self._doubted]

    def _doubt(self, now_s: float) -> None:
        """A broker that let a lease run out stands still, whatever its last beat said: it is given nothing before it
        was heard of again, and is settled."""
        registry = self.front.registry
        for broker, since_s in list(self._doubted.items()):
            if broker not in registry.nodes or now_s - since_s > SETTLE_S:
                del self._doubted[broker]
            elif registry.heard_s(broker) <= since_s:
                self._doubted[broker] = now_s
        for holder in self._holders.values():
            if holder.owner not in ("", registry.id) and holder.left_s <= 0:
                self._doubted[holder.owner] = now_s

    async def _find_dead(self) -> None:
        """A broker whose connection broke, and at whose address nobody listens, was killed: its leases need not be
        waited for. If we are wrong, it finds itself deposed, as any zombie."""
        owners = {one.owner: one.address for one in self._holders.values() if one.owner and one.left_s > 0}
        self._dead &= owners.keys()
        for owner, address in owners.items():
            if owner not in self._dead and self.front.registry.broke_off(owner) and await _refuses(address):
                log.warning("the broker at %s is dead: its realms are taken", address)
                self._dead.add(owner)

    def _move(self, realm: str, what: str, work: Coroutine[Any, Any, None]) -> None:
        self._moving.add(realm)

        async def move() -> None:
            try:
                await work
            except TowlineError as error:
                log.error("realm %s: %s", realm, error)
            except Exception:
                log.exception("realm %s could not be taken or given", realm)
            finally:
                self._moving.discard(realm)

        self._spawn(what, move(), self._moves)

    async def _take(self, realm: str, dead_owner: str = "") -> None:
        lease = await self._ownership.acquire(realm, dead_owner)
        if lease is None:
            return
        if self._closing:
            await self._ownership.release(lease)
            return
        store = await _Store.open(self.database, lease, clock=self._clock)
        store.number = self.number
        try:
            broker = await Broker.open(store, self._settings, clock=self._clock, lag=self.front.lag)
        except BaseException:
            await store.close()
            raise
        broker.registry = self.front.registry
        try:
            await self.front.instruct(broker)
            await self._refuse_strangers(realm, broker)
        except BaseException:
            # Else its lease would be held, and nobody would serve the realm.
            await broker.close()
            raise
        self.owned[realm] = broker
        self._note_news()
        log.info("realm %s is served here, in epoch %d", realm, lease.epoch)
        store.lost.add_done_callback(lambda _: self._lost(realm, broker))
        # The common settings may have changed while nobody knew that this realm is here.
        await self.front.instruct(broker)

    async def _refuse_strangers(self, realm: str, broker: Broker) -> None:
        async for name in in_slices(list(broker.topics)):
            if self.realm_of(name) != realm:
                raise BadRequest(
                    f"topic {name} is in it, but with realms={len(self._names)} it would belong to "
                    f"{self.realm_of(name)}: start all brokers with the number of realms that this database has"
                )

    def _lost(self, realm: str, broker: Broker) -> None:
        """Another broker has it, or the database failed: nothing that we know of it counts any more."""
        if self.owned.get(realm) is broker:
            del self.owned[realm]
            self._note_news()
            log.warning("realm %s was lost", realm)
            self._spawn("letting go of a realm", self._drop(broker), self._moves)

    async def _drop(self, broker: Broker) -> None:
        broker.release_waiters()
        await broker.close()

    async def _hand_over(self, realm: str, heir: str) -> None:
        broker = self.owned.pop(realm, None)
        if broker is None:
            return  # it was lost in this moment
        self._note_news()
        assert isinstance(broker.store, _Store)
        broker.store.heir = heir
        log.info("realm %s is handed over to %s", realm, heir)
        await self._drop(broker)
        node = self.front.registry.nodes.get(heir)
        if self._closing and node is not None:
            # A broker that leaves reads the owners no more.
            epoch = broker.store.lease.epoch
            self._holders[realm] = Holder(realm, heir, node.state.address, epoch, math.inf, "")
            self._note_news()

    async def leave(self) -> None:
        """Hand everything over to those who stay, all realms at a time. Clients are still connected, and are
        redirected."""
        if self._closing:
            return
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._follow_once_more()
        me = self.front.registry.id
        others = [one.id for one in self.front.registry.states() if one.state == "alive" and one.id != me]
        while self.owned or self._moves:
            leaving = [self._leave_to(realm, _chosen(realm, others) or "") for realm in list(self.owned)]
            given = [self.front.lag.timed(GIVING, one) for one in leaving]
            # A realm that was being taken just now is handed over, too: else nobody else gets it before its lease ends.
            await asyncio.gather(self._moved(), *given)

    async def _moved(self) -> None:
        """Realms under way were taken or handed over, or cannot be waited for."""
        if self._moves:
            _, late = await asyncio.wait(self._moves, timeout=FOLLOW_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _leave_to(self, realm: str, heir: str) -> None:
        try:
            await self._hand_over(realm, heir)
        except TowlineError as error:
            log.error("realm %s could not be handed over: %s", realm, error)

    async def close(self) -> None:
        await self.leave()
        await self.database.close()

    async def _follow_once_more(self) -> None:
        """Take over what was changed at another broker just now. A broker that is alone later goes by the documents in
        its realm."""
        try:
            async with asyncio.timeout(FOLLOW_S):
                await self.front.follow()
        except (TowlineError, TimeoutError) as error:
            log.warning(
                "what other brokers changed in the last moment is not known here: %s", str(error) or "no answer in time"
            )


def _chosen(realm: str, brokers: list[str]) -> str | None:
    return max(brokers, key=lambda broker: blake2b(f"{realm}|{broker}".encode(), digest_size=8).digest(), default=None)


async def _refuses(address: str) -> bool:
    """Whether nobody listens there, and its machine says so."""
    host, port = split_address(address)
    try:
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False
