# Generated from towline/client/_async/consumer.py by scripts/unasync.py: change it there.
"""The blocking consumer."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from operator import length_hint
from types import TracebackType
from typing import Final, Self

from towline.client import process_end, requests
from towline.client._sync.heartbeat import Heartbeat
from towline.client._sync.process_end import ConsumerEnd
from towline.client.cluster.rank import Rank, standing
from towline.client.concurrency.threads import IN_TASKS, to_thread
from towline.client.consume.batch import Batch as AnyBatch
from towline.client.consume.heartbeat import HeartbeatTimer
from towline.client.consume.lease import Lease
from towline.client.consume.message import Message
from towline.client.consume.subscription import Subscription
from towline.client.link.blocking import Link
from towline.errors import Closed, TowlineError
from towline.model import GroupConfig

__all__ = ["Batch", "Consumer"]

log = logging.getLogger("towline.client")

_CLOSE_S: Final = 5.0
_COME_BACK_S: Final = 0.5


class Batch(AnyBatch):
    """The messages of one pull, possibly none: then it is false.

    batch = consumer.pull(max_messages=500, wait=2.0)
    for message in batch:
        handle(message.body)
    batch.ack()
    """

    def __init__(self, link: Link, subscription: Subscription, lease: Lease | None) -> None:
        super().__init__(subscription, lease)
        self._link = link

    def ack(self, *, up_to: bool = False) -> None:
        """Done with all of them that are not settled yet; with `up_to`, also with all pulled before. It is durable when
        this returns. Raises `LeaseLost` if they are not ours any more; if that is so of some of them only, the others
        are settled before, and it says how many are lost."""
        self._link.run(self._ack_flow(up_to))
        self._subscription.losses.report()

    def nack(self, reason: str = "", delay: float | None = None) -> None:
        """All of them that are not settled yet have failed: deliver them again after `delay` seconds, or when the
        group's retry policy says."""
        self._link.run(self._nack_flow(reason, delay))
        self._subscription.losses.report()


class Consumer(ConsumerEnd):
    """Pulls messages of one topic. Made by `Client.consumer`; it has a connection of its own, and belongs to one thread
    (single messages may be acked from any).

        with mq.consumer("orders", group="billing") as consumer:
            for message in consumer:
                with message:
                    handle(message.body)
    """

    def __init__(self, link: Link, subscription: Subscription) -> None:
        self._link = link
        self._subscription = subscription
        subscription.in_tasks = IN_TASKS
        self._lease = Lease.none()
        self._left: Iterator[Message] = iter(())
        self._closed = False
        self._why_closed = "the consumer was closed"
        self._pulse = HeartbeatTimer(link, subscription)
        self._heartbeat: Heartbeat | None = None

    def start(self) -> None:
        """Join the group; `Client.consumer` does this for you."""
        try:
            self._link.run(self._subscription.start())
            self._link.connection.member = self._subscription
            self._link.run(self._subscription.take_up())
        except BaseException:
            self._closed = True
            self._link.close()
            self._let_go_of_spool()
            raise
        self._heartbeat = Heartbeat(self._tend, f"towline-heartbeat-{self.name}")
        process_end.watch(self)

    def __repr__(self) -> str:
        subscription = self._subscription
        return f"<Consumer {subscription.consumer} of {subscription.topic}, group {subscription.group}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # An interrupt or a cancellation is no fault of the messages: they go back with us.
        if isinstance(error, Exception):
            self.nack_handed_out(error)
        self.close()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def topic(self) -> str:
        return self._subscription.topic

    @property
    def group(self) -> str:
        """`~name` for a consumer without a group."""
        return self._subscription.group

    @property
    def name(self) -> str:
        return self._subscription.consumer

    @property
    def config(self) -> GroupConfig:
        """The settings of the group, as the broker has them."""
        return self._subscription.config

    @property
    def in_flight(self) -> int:
        """Messages held here that nothing was said about yet."""
        return self._subscription.in_flight

    @property
    def lost(self) -> int:
        """Messages whose lease was lost so far."""
        return self._subscription.losses.messages

    def pull(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        wait: float = 1.0,
        min_messages: int = 1,
    ) -> Batch:
        """Ask for messages, waiting up to `wait` seconds until there are `min_messages` of them. As many as
        `max_messages` at most; if it is not given, as many as that of the consumer, and fewer while you are slow with
        them, as in an iteration. What an iteration that was left had fetched goes back before, and comes with it or
        later."""
        self._check()
        asked = self._subscription.limits.asked(max_messages, max_bytes, min_messages)
        self._put_back_left()
        lease = self._link.run(self._subscription.pull(asked, wait))
        self._tell()
        return Batch(self._link, self._subscription, lease)

    def __iter__(self) -> Iterator[Message]:
        """All messages as they come; ends after `idle_timeout` without any, if one was given. You may leave the loop
        and begin another: it goes on where the first was left."""
        while True:
            lease, left = self._lease, self._left
            for message in left:
                if lease.lost:
                    # Others have them now.
                    break
                if lease.returned and message.settled:
                    continue
                yield message
            following = self._next_batch(single=True)
            if following is None:
                return
            self._lease, self._left = following.lease, iter(following.messages)

    def batches(self) -> Iterator[Batch]:
        """All messages as they come, batch by batch; the next one is under way while you work on this. As large as
        `max_messages` and `max_bytes` of the consumer say at most; smaller while you are slow.

            for batch in consumer.batches():
                with batch:
                    insert_all(batch.bodies())
        """
        while True:
            self._put_back_left()
            batch = self._next_batch()
            if batch is None:
                return
            yield batch

    def _next_batch(self, *, single: bool = False) -> Batch | None:
        self._check()
        lease = self._link.run(self._subscription.next(single=single))
        self._tell()
        return None if lease is None else Batch(self._link, self._subscription, lease)

    def _put_back_left(self) -> None:
        """Give back what the loop over messages has fetched and not handed out: nobody else would look at it."""
        if self._lease.open_count:
            self._lease.put_back_last(len(list(self._left)))

    def flush(self) -> None:
        """Tell the broker of all acks and nacks, and wait until they are durable. Those for messages that are not ours
        any more count for nothing, and raise nothing: `message.lost` and `lost` tell of them, and `on_lost` is
        called."""
        self._check()
        self._link.run(self._subscription.flush())
        self._subscription.losses.report()

    def nack_handed_out(self, error: Exception) -> None:
        """This exception left the block of the consumer or its client: what was handed out and is not settled has
        failed, with the exception as the reason."""
        with self._link.lock:
            self._subscription.nack_handed_out(error, self._lease, length_hint(self._left))

    def close(self) -> None:
        """Tell the broker of all acks and nacks, give back what is not settled, and leave."""
        if self._closed:
            return
        self._closed = True
        process_end.forget(self)
        if self._heartbeat is None:
            # It was never entered.
            self._let_go_of_spool()
            self._link.close()
            return
        self._heartbeat.stop()
        self._link.timeout_s = min(self._link.timeout_s, _CLOSE_S)
        try:
            self._link.run(self._subscription.close())
        except TowlineError as error:
            log.warning("%r could not take its leave: %s", self, error)
            self._keep(ready=False)
        else:
            self._keep(ready=True)
        finally:
            self._link.close()
            self._let_go_of_spool()
            self._subscription.losses.report()

    def _keep(self, *, ready: bool) -> None:
        """What cannot be told goes to the local disk, if there is a spool."""
        with self._link.lock:
            unkept = self._subscription.unkept(ready=ready)
        if unkept and self._subscription.spool is not None:
            to_thread(self._subscription.spool.keep, unkept)

    def _let_go_of_spool(self) -> None:
        if self._subscription.spool is not None:
            self._subscription.spool.close()

    def _check(self) -> None:
        if self._closed:
            raise Closed(self._why_closed)

    # For a consumer of many brokers

    @property
    def link(self) -> Link:
        return self._link

    @property
    def subscription(self) -> Subscription:
        return self._subscription

    def handed_out(self) -> None:
        """Messages of ours were given to the user."""
        self._tell()

    def standing(self) -> Rank:
        """The rank of this consumer among those of its group, and how many they are."""
        self._check()
        state = self._link.run(requests.group(self.topic, self.group))
        return standing(state, self.name)

    def _tell(self) -> None:
        self._subscription.losses.report()
        if self._heartbeat is not None:
            self._heartbeat.nudge(self._pulse.stir())

    # In the heartbeat's thread

    def _tend(self) -> float:
        """Show that we are alive, and see to what cannot wait for the user's next call."""
        try:
            if self._link.connection.ready:
                self._link.pump(0.0)  # what was heard counts before we judge our own silence
            with self._link.lock:
                self._pulse.judge(time.monotonic())
                beat = self._pulse.due(time.monotonic())
            if beat is not None:
                self._link.start(beat)
            self._link.run(self._subscription.start_settles())
            self._link.pump(0.0)
            self._keep(ready=self._link.connection.ready)
            if self._subscription.holds:
                # After a break the broker keeps it for a moment only, and the user's code may be busy for longer.
                self._link.pump_until_ready(_COME_BACK_S)
            self._subscription.losses.report()
        except TowlineError as error:
            log.warning("%r: %s", self, error)
        except Exception:
            log.exception("%r: the heartbeat failed", self)
        return self._pulse.tick_s
