"""The topics of a broker by name: find, make, change and count them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from towline.broker.topics.catalog import Catalog
from towline.broker.topics.gone_streams import GoneStreams, streams_of_topic
from towline.broker.topics.shards import wrong_shard
from towline.broker.topics.topic import Topic
from towline.clock import Clock, TimeSlice, in_slices
from towline.errors import BadRequest, Conflict, NotFound, TooMany, TowlineError, Unavailable
from towline.model import MAX_SHARDS_IN_ALL, MAX_TOPICS, Durability, TopicConfig, check_topic
from towline.protocol import messages as wire
from towline.protocol.topics import EditTopic
from towline.settings import BrokerSettings
from towline.store import Store

if TYPE_CHECKING:
    from towline.broker.consume.dispatcher import Dispatcher

__all__ = ["Topics"]

log = logging.getLogger("towline.broker")

_ASKED_MAX: Final = 20
"""Topics of one request that other brokers are asked for."""
_ASKED_S: Final = 5.0
"""For so long the answer counts that no other broker has a topic."""


class Topics(dict[str, Topic]):
    """Topics at work. The catalog knows one a moment earlier: while it is being made."""

    def __init__(
        self,
        store: Store,
        settings: BrokerSettings,
        clock: Clock,
        catalog: Catalog,
        *,
        remains: GoneStreams,
        closing: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._remains = remains
        self._store = store
        self._settings = settings
        self._clock = clock
        self._catalog = catalog
        self._closing = closing
        self.on_made: Callable[[str], None] = lambda name: None
        """Called with the name of a new topic."""
        self.ask_around: Callable[[str], Awaitable[None]] | None = None
        """In a cluster whose brokers keep their own messages: makes a topic that another one has."""
        self._asked: dict[str, float] = {}
        """Topics that no other broker had, and when they were asked for."""

    async def recover(self, part: TimeSlice) -> None:
        async for name, config in in_slices(self._catalog.topics.items(), part):
            self[name] = Topic(config, self._store)

    # Finding

    def named(self, name: str) -> Topic:
        topic = self.get(check_topic(name))
        if topic is None:
            raise NotFound(f"there is no topic {name}")
        return topic

    def of_delayed(self, name: str) -> Topic:
        """The topic of delayed messages existed when they were sent; a crash may have forgotten it."""
        return self.get(name) or self._make_now(TopicConfig(name, self._clock.now_us()))

    def for_send(self, name: str) -> Topic:
        """A topic to send to; the first send makes it, where allowed."""
        topic = self.get(name)
        if topic is not None:
            return topic
        check_topic(name)
        if name in self._catalog.topics:
            raise Unavailable(f"topic {name} is being made in this moment: try again")
        if not self._settings.auto_create_topics:
            raise NotFound(f"there is no topic {name}, and this broker does not make topics by itself: create it first")
        config = self._catalog.from_template(name)
        self._remains.check(streams_of_topic(config), f"topic {name}")
        return self._make_now(config)

    def dispatchers(self) -> Iterator[Dispatcher]:
        """All groups of all topics, at work."""
        for topic in self.values():
            yield from topic.groups.values()

    def shard_count(self, name: str) -> int:
        topic = self.get(check_topic(name))
        return topic.config.shards if topic is not None else 0

    def expect_shards(self, name: str, shards: int) -> None:
        """Refuse a sender with another number of shards: it put the messages into the wrong ones."""
        actual = 0 if (topic := self.get(name)) is None else topic.config.shards
        if actual != shards:
            raise wrong_shard(name, actual, shards)

    def look_first(self, heads: Sequence[wire.FrameHead]) -> Callable[[], Awaitable[None]] | None:
        """Ask the other brokers for topics that are not known here, before a sender is refused for its number of
        shards."""
        ask = self.ask_around
        names = sorted({head.topic for head in heads if self._is_unheard(head)})
        if ask is None or not names:
            return None

        async def look() -> None:
            for name in names[:_ASKED_MAX]:
                await ask(name)
            if len(self._asked) + len(names) > MAX_TOPICS:
                self._asked.clear()
            self._asked.update(dict.fromkeys(names, self._clock.steady_s()))

        return look

    def _is_unheard(self, head: wire.FrameHead) -> bool:
        """Whether other brokers may know more of a topic: one that its sender takes for ordered, or any that is new."""
        if head.topic in self:
            return False
        return bool(head.shards) or self._clock.steady_s() - self._asked.get(head.topic, -_ASKED_S) >= _ASKED_S

    def expect_all(self, heads: Sequence[wire.FrameHead]) -> None:
        """`expect_shards` for the frames of a unit; neighbours mostly go to the same topic. Where there are other
        brokers, a topic that nobody was asked for yet is not taken for a shared one."""
        name, shards = "", -1
        for head in heads:
            if head.shards != shards or head.topic != name:
                name, shards = head.topic, head.shards
                self.expect_shards(name, shards)
                if self.ask_around is not None and self._is_unheard(head):
                    raise wrong_shard(check_topic(name), 0, shards)

    # Changes

    async def create(self, config: TopicConfig) -> None:
        if config.name in self._catalog.topics:
            raise Conflict(f"topic {config.name} exists already")
        self._check_room(config)
        self._remains.check(streams_of_topic(config), f"topic {config.name}")
        config = msgspec.structs.replace(config, created_at_us=self._clock.now_us())
        self._catalog.put_topic(config)
        # Nothing may be sent to it before its number of shards is durable: the messages alone do not tell it.
        try:
            await self._catalog.save()
        except BaseException:
            self._catalog.drop_topic(config.name)
            raise
        self._install(config)

    def _make_now(self, config: TopicConfig) -> Topic:
        """Make a topic without waiting until it is durable: it is as soon as a later message is."""
        self._check_room(config)
        self._catalog.put_topic(config)
        self._save_soon()
        return self._install(config)

    def _install(self, config: TopicConfig) -> Topic:
        topic = self[config.name] = Topic(config, self._store)
        self._remains.taken(streams_of_topic(config))
        self.on_made(config.name)
        return topic

    def _check_room(self, config: TopicConfig) -> None:
        if self._closing():
            raise Unavailable("the broker is shutting down")
        if len(self) >= MAX_TOPICS:
            raise TooMany(f"this broker has {MAX_TOPICS} topics already: topic {config.name} is not made")
        if config.shards and self._catalog.shards > MAX_SHARDS_IN_ALL - config.shards:
            raise TooMany(f"the topics of this broker may have {MAX_SHARDS_IN_ALL} shards in all: not so many more")

    async def put(self, request: wire.PutTopic) -> None:
        """Change the settings of a topic, or of the template for topics made by the first send."""
        if request.template:
            if request.config.shards:
                raise BadRequest("the template is for topics made by the first send: they are not ordered")
            self._catalog.put_template(request.config)
            await self._catalog.save()
            # Brokers that are joined on this database later look for it in the document.
            await self._catalog.write()
        else:
            topic = self.named(request.config.name)
            if request.config.shards != topic.config.shards:
                raise BadRequest(
                    f"topic {request.config.name} was made with shards={topic.config.shards}, which cannot be changed "
                    f"to {request.config.shards}"
                )
            topic.config = msgspec.structs.replace(request.config, created_at_us=topic.config.created_at_us)
            self._catalog.put_topic(topic.config)
            await self._catalog.save()

    def adopt_template(self, config: TopicConfig) -> None:
        """Use the template that brokers on one database share, from this moment on."""
        if config != self._catalog.template:
            self._catalog.put_template(config)
            self._save_soon()

    async def edit(self, request: EditTopic) -> None:
        topic = self.named(request.topic)
        topic.config = msgspec.structs.replace(topic.config, retention_s=request.retention_s)
        self._catalog.put_topic(topic.config)
        await self._catalog.save()

    def _save_soon(self) -> None:
        try:
            self._catalog.append(Durability.OS)
        except TowlineError as error:
            log.error("the list of topics could not be written, and will be tried again: %s", error)
