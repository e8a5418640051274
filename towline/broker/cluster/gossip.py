"""Gossip: each broker beats each other one it knows of, and sends it the list of all the others.

There is no leader and no quorum: a decision that only one may take is taken by the database (SQL store), or concerns
one broker's own messages only (log store). The beats say who is there, so that clients find all and use those that
live.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from towline.broker.cluster.peer import Credentials, Peer
from towline.errors import BadRequest, Conflict, NotFound, TowlineError
from towline.model import PRIVATE, GroupConfig, TopicConfig
from towline.protocol.cluster import Meet, Met
from towline.protocol.messages import Groups, ListGroups, ListTopics, TopicInfo, Topics, TopicState
from towline.protocol.monitor import AlarmBook, AskAlarmBook

if TYPE_CHECKING:
    from towline.broker.broker import Broker
    from towline.settings import BrokerSettings

__all__ = ["Gossip", "advertised", "join_addresses", "split_address"]

log = logging.getLogger("towline.cluster")

_TIMEOUT_BEATS: Final = 2.0
_FAREWELL_S: Final = 0.5
_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - these are refused
_LOUD_EVERY_S: Final = 60.0
_LOGIN_S: Final = 10.0


def split_address(text: str, setting: str = "listen") -> tuple[str, int]:
    """`HOST:PORT`; an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in host and not bracketed):
        raise BadRequest(f"{setting} {text!r}: write HOST:PORT, for example 127.0.0.1:7400 or [::1]:7400")
    return host[1:-1] if bracketed else host, int(port)


def join_addresses(settings: BrokerSettings) -> list[str]:
    """The addresses of `join`, checked."""
    addresses = [text.strip() for text in settings.join.split(",") if text.strip()]
    for address in addresses:
        host, port = split_address(address, "join")
        if host in _EVERYWHERE or not port:
            raise BadRequest(f"join {address!r}: name the host and port of a broker")
    return addresses


def advertised(settings: BrokerSettings, port: int) -> str:
    """The address by which others reach us."""
    if settings.advertise:
        split_address(settings.advertise, "advertise")
        return settings.advertise
    host, _ = split_address(settings.listen)
    if host in _EVERYWHERE:
        if settings.join:
            raise BadRequest(f"listen {settings.listen} is no address that others can use: set advertise to HOST:PORT")
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _credentials(settings: BrokerSettings) -> Credentials:
    secret = ""
    if settings.cluster_secret_file:
        try:
            secret = Path(settings.cluster_secret_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"cluster_secret_file {settings.cluster_secret_file}: {error}") from None
    context = None
    if settings.tls_cert:
        try:
            context = ssl.create_default_context(cafile=settings.cluster_ca_file or None)
        except OSError as error:
            raise BadRequest(f"cluster_ca_file {settings.cluster_ca_file}: {error}") from None
        # A broker that asks clients for certificates asks other brokers as well. (That it loads was seen by `tls_of`.)
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return Credentials(settings.cluster_token, secret, context)


class Gossip:
    """The conversations of one broker with the others."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._registry = broker.registry
        self._beat_s = broker.settings.cluster_beat_s
        self._joins = join_addresses(broker.settings)
        self._credentials = _credentials(broker.settings)
        self._talks: dict[str, asyncio.Task[None]] = {}
        self._aliases: dict[str, str] = {}
        """Addresses by which we, or brokers with another one in the membership, can be reached as well."""
        self._said: dict[str, float] = {}
        self._caught_up: set[tuple[str, int]] = set()
        self._seen_alarms: dict[str, str] = {}
        """By broker, the digest of the alarm rules that it was asked for last."""
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if not self._registry.shared:
            self._broker.topics.ask_around = self.ask_around
            self._broker.group_expiry.ask_others = self.unused_elsewhere
        self._task = asyncio.get_running_loop().create_task(
            self._broker.lag.timed("the cluster", self._tend()), name="cluster"
        )

    async def stop(self) -> None:
        """Say farewell: others need not find out."""
        self._registry.leaving = True
        self._broker.topics.ask_around = None
        self._leave.set()
        if self._task is not None:
            self._task.cancel()
        talks = list(self._talks.values())
        if talks:
            await asyncio.wait(talks, timeout=_FAREWELL_S)
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, *([self._task] if self._task else []), return_exceptions=True)

    async def _tend(self) -> None:
        while True:
            for address in self._wanted():
                if address not in self._talks or self._talks[address].done():
                    talk = self._broker.lag.timed("talking to other brokers", self._talk(address))
                    self._talks[address] = asyncio.get_running_loop().create_task(talk)
            self._registry.sweep()
            self._forget()
            if not self._registry.shared:
                await self._broker.homes.review()
            try:
                await self._registry.save()
            except TowlineError as error:
                log.error("the list of brokers could not be written: %s", error)
            await asyncio.sleep(self._beat_s)

    def _forget(self) -> None:
        """Forget brokers that are gone: where addresses come and go, there would be no end to it."""
        nodes = self._registry.nodes
        addresses = {*self._joins, *(node.state.address for node in nodes.values())}
        epochs = {broker: node.state.epoch for broker, node in nodes.items()}
        self._caught_up = {(broker, epoch) for broker, epoch in self._caught_up if epochs.get(broker) == epoch}
        for by_address in (self._aliases, self._said, self._talks):
            for address in by_address.keys() - addresses:
                talk = self._talks.get(address)
                if talk is None or talk.done():
                    del by_address[address]
        for broker in self._seen_alarms.keys() - nodes.keys():
            del self._seen_alarms[broker]

    def _wanted(self) -> list[str]:
        known = [node.state.address for node in self._registry.nodes.values()]
        aliases = {address for address, named in self._aliases.items() if named in (*known, self._registry.address)}
        return [
            one for one in dict.fromkeys([*self._joins, *known]) if one not in aliases and one != self._registry.address
        ]

    async def _talk(self, address: str) -> None:
        """One conversation, until the connection breaks; the next beat begins another."""
        host, port = split_address(address, "join")
        timeout_s = max(_TIMEOUT_BEATS * self._beat_s, 0.5)
        neighbour = Peer(host, port, self._credentials, timeout_s, login_s=_LOGIN_S)
        try:
            await neighbour.open()
            while await self._beat(neighbour, address):
                if self._leave.is_set():
                    return
                await self._rest(neighbour)
        except (TowlineError, OSError) as error:
            self._registry.lost(address)
            self._say(address, error)
        finally:
            await neighbour.close()

    async def _rest(self, neighbour: Peer) -> None:
        """Wait until the next beat. A broker that dies meanwhile is noticed, and so is our own leaving."""
        resting = asyncio.ensure_future(neighbour.rest(self._beat_s))
        leaving = asyncio.ensure_future(self._leave.wait())
        try:
            await asyncio.wait([resting, leaving], return_when=asyncio.FIRST_COMPLETED)
            if resting.done():
                resting.result()
        finally:
            for task in (resting, leaving):
                task.cancel()
            await asyncio.gather(resting, leaving, return_exceptions=True)

    async def _beat(self, neighbour: Peer, address: str) -> bool:
        """Send a beat. True if the connection has a use later."""
        registry = self._registry
        me, *known = registry.states()
        met = await neighbour.ask(Meet(me, known), Met)
        if met.me.id == registry.id and met.me.epoch == registry.epoch and met.me.address == registry.address:
            self._aliases[address] = registry.address
            return False
        if registry.heard(met.me):
            self._said.pop(address, None)
            log.info("broker %s at %s is alive", met.me.name, met.me.address)
        registry.told(met.known)
        if met.me.address != address:
            self._aliases[address] = met.me.address
            return met.me.address not in self._talks
        if not registry.shared:
            await self._broker.homes.heard(met.me.id, met.backlog)
        if (met.me.id, met.me.epoch) not in self._caught_up and not registry.shared:
            await self._catch_up(neighbour)
            self._caught_up.add((met.me.id, met.me.epoch))
        await self._compare_alarms(neighbour, met)
        return True

    async def _compare_alarms(self, neighbour: Peer, met: Met) -> None:
        """Alarm rules may have been made, changed, silenced or dropped while one of us was away. Each asks the other,
        and the later change counts, so that both come to the same."""
        alarms = self._broker.outlook.alarms
        if not met.alarms or met.alarms in (alarms.digest, self._seen_alarms.get(met.me.id)):
            return
        after, more, news = "", True, False
        while more:
            book = await neighbour.ask(AskAlarmBook(after), AlarmBook)
            news = await alarms.merge(book) or news
            after, more = max([*(rule.name for rule in book.rules), *book.changes], default=""), book.more
        self._seen_alarms[met.me.id] = met.alarms
        if news:
            log.info("alarm rules are now as broker %s at %s has changed them", met.me.name, met.me.address)

    async def _catch_up(self, neighbour: Peer) -> None:
        """Make the topics and groups that another broker has and we have not: they were made while we were away."""
        topics = (await neighbour.ask(ListTopics(), Topics)).topics
        groups = (await neighbour.ask(ListGroups(), Groups)).groups
        for theirs in (topic.config for topic in topics):
            mine = self._broker.topics.get(theirs.name)
            if mine is not None and mine.config.shards != theirs.shards:
                log.warning(
                    "topic %s has %d shards here and %d at another broker (0 is shared): sends to it will be refused; "
                    "`towline cluster check` says how to mend it", theirs.name, mine.config.shards, theirs.shards,
                )  # fmt: skip
        await self._adopt([topic.config for topic in topics], [group.config for group in groups])

    async def _adopt(self, topics: Sequence[TopicConfig], groups: Sequence[GroupConfig]) -> None:
        broker = self._broker
        for topic in topics:
            if topic.name not in broker.topics:
                try:
                    await broker.topics.create(topic)
                except Conflict:
                    continue
        for group in groups:
            passing, mine = group.ephemeral or group.name.startswith(PRIVATE), broker.topics.get(group.topic)
            if not passing and mine is not None and group.name not in mine.groups:
                await broker.groups.put(group)

    # Topics of others

    async def ask_around(self, topic: str) -> None:
        """Make a topic that another broker has, as it is there: it was made without us. All concurrent requests share
        one round of questions."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.get_running_loop().create_task(self._find(topic))
            asking.add_done_callback(lambda _: self._asking.pop(topic, None))
        await asyncio.shield(asking)

    async def _find(self, topic: str) -> None:
        _, *others = self._registry.states()
        addresses = [one.address for one in others if one.state == "alive" and one.address]
        answers = await asyncio.gather(*(self._ask_for(topic, address) for address in addresses))
        found = [answer for answer in answers if answer is not None]
        if found:
            # If they disagree, because it was made at one of them by a send: whoever made it ordered meant it.
            config, groups = max(found, key=lambda answer: answer[0].shards)
            await self._adopt([config], groups)
            log.info("topic %s is made as another broker has it", topic)

    async def _ask_for(self, topic: str, address: str) -> tuple[TopicConfig, list[GroupConfig]] | None:
        host, port = split_address(address, "join")
        neighbour = Peer(host, port, self._credentials, max(self._beat_s, 0.5))
        try:
            await neighbour.open()
            config = (await neighbour.ask(TopicInfo(topic), TopicState)).config
            groups = (await neighbour.ask(ListGroups(topic), Groups)).groups
        except (TowlineError, OSError):
            return None
        finally:
            await neighbour.close()
        return config, [group.config for group in groups]

    # Use of groups

    async def unused_elsewhere(self, topic: str) -> Mapping[str, float] | None:
        """For how long none of the other brokers has seen the groups of a topic used; None if one of them does not
        answer. Consumers attach to all brokers, but may reach only some."""
        _, *others = self._registry.states()
        if any(one.state != "alive" or not one.address for one in others):
            return None
        unused: dict[str, float] = {}
        for answer in await asyncio.gather(*(self._unused_at(topic, one.address) for one in others)):
            if answer is None:
                return None
            for group, seconds in answer:
                unused[group] = min(seconds, unused.get(group, seconds))
        return unused

    async def _unused_at(self, topic: str, address: str) -> list[tuple[str, float]] | None:
        host, port = split_address(address, "join")
        neighbour = Peer(host, port, self._credentials, max(_TIMEOUT_BEATS * self._beat_s, 0.5))
        try:
            await neighbour.open()
            groups = (await neighbour.ask(ListGroups(topic), Groups)).groups
        except NotFound:
            return []
        except (TowlineError, OSError):
            return None
        finally:
            await neighbour.close()
        return [(one.config.name, 0.0 if one.members else one.unused_s) for one in groups]

    def _say(self, address: str, error: Exception) -> None:
        """Log a broker that is away once, and then rarely."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._said.get(address, 0.0) and not self._leave.is_set():
            self._said[address] = now_s + _LOUD_EVERY_S
            log.warning("broker %s: %s", address, error)
