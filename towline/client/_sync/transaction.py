# Generated from towline/client/_async/transaction.py by scripts/unasync.py: change it there.
"""Transactions of the blocking client; and the threads by which brokers ask what became of prepared ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from towline.client.admin.delayed import Time, as_deliver_at
from towline.client.concurrency.threads import Event, Worker, current, outcome_of
from towline.client.link.backoff import Backoff
from towline.client.link.blocking import Link
from towline.client.produce.encode import Body, as_lives
from towline.client.produce.transaction import (
    DirectTransaction,
    Phase,
    StoredTransaction,
    TransactionCore,
    Verdict,
    await_checks,
    decide,
    verdict,
)
from towline.errors import Closed, Conflict, TowlineError
from towline.model import Priority, Receipt, check_producer_group
from towline.protocol.transactions import Check

__all__ = ["Checker", "OnCheck", "PreparedTransaction", "Transaction"]

log = logging.getLogger("towline.client")

U = TypeVar("U", bound=TransactionCore)

OnCheck = Callable[[Check], Verdict]


class _Gathering(Generic[U]):
    """Where messages are gathered."""

    def __init__(self, link: Callable[[str], Link], count_shards: Callable[[str], int], core: U) -> None:
        self._link_to = link
        self._count_shards = count_shards
        self._link = link("")
        self._core = core

    def __len__(self) -> int:
        """How many messages it holds."""
        return len(self._core)

    def __bool__(self) -> bool:
        return True

    @property
    def state(self) -> str:
        return self._core.phase.value

    @property
    def receipts(self) -> list[Receipt]:
        """Where the messages are, in the order of their sends, once it is committed."""
        return self._core.receipts

    def send(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        priority: Priority = "middle",
        headers: Mapping[str, str] | None = None,
        dedup_id: str | None = None,
        delay: float | None = None,
        deliver_at: Time | None = None,
        delay_level: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
        attempts: int | None = None,
        shard_key: str | None = None,
    ) -> int:
        """Put a message into the transaction. The answer is its place in `receipts`. A delay counts from the commit,
        `ttl` from now."""
        return self._core.add(
            topic,
            body,
            key=key,
            priority=priority,
            headers=headers,
            dedup_id=dedup_id,
            deliver_at_us=as_deliver_at(delay, deliver_at, delay_level),
            lives=as_lives(ttl, timeout, attempts),
            shard_key=shard_key,
        )

    def send_many(
        self,
        topic: str,
        bodies: Sequence[Body],
        *,
        priority: Priority = "middle",
        keys: Sequence[str | None] | None = None,
        shard_keys: Sequence[str | None] | None = None,
    ) -> range:
        """Put many messages into the transaction. The answer is their places in `receipts`."""
        return self._core.add_many(topic, bodies, priority=priority, keys=keys, shard_keys=shard_keys)

    def _find_home(self) -> None:
        """In a cluster, the messages of ordered topics have a broker that they belong to."""
        for topic in self._core.uncounted():
            self._count_shards(topic)
        home = self._core.home()
        if home:
            self._link = self._link_to(home)


class Transaction(_Gathering[DirectTransaction]):
    """Messages for any topics, stored together or not at all. Made by `Client.transaction`.

        with mq.transaction() as tx:        # leaves: commit; raises: abort
            tx.send("orders", b"...")
            tx.send("stock", b"...")

    or, step by step, `tx.begin()`, `tx.commit()` and `tx.abort()`."""

    def __repr__(self) -> str:
        return f"<Transaction of {len(self)} messages, {self.state}>"

    def begin(self) -> Self:
        """Begin it, outside of a block."""
        self._core.begin()
        return self

    def commit(self) -> list[Receipt]:
        """Store all of it at once; it is durable when this returns, and gives a receipt for each message. If this
        raises `Unavailable`, it may have been stored all the same: commit again, which never stores it twice."""
        self._find_home()
        self._link.run(self._core.commit())
        return self._core.receipts

    def abort(self) -> None:
        """Drop all of it. (A program that ends without a commit has aborted as well: nothing was sent yet.)"""
        self._core.abort()

    def __enter__(self) -> Self:
        self._core.begin(current())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._core.phase is Phase.OPEN:
                self.commit()
        finally:
            self._core.leave(current())


class PreparedTransaction(_Gathering[StoredTransaction]):
    """Messages that the broker keeps, durably and out of sight, while you carry out a transaction of your own. Made by
    `Client.prepare`.

        with mq.prepare("shop", name="order-4423") as tx:
            tx.send("orders", b"...")
            tx.store()                # from here on the broker has it, and will ask what became of it
            database.commit()
        # leaves: commit; raises after store(): the broker asks your `on_check`, because your commit may have happened
    """

    def __repr__(self) -> str:
        return f"<PreparedTransaction {self.id} of {len(self)} messages, {self.state}>"

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def name(self) -> str:
        return self._core.name

    def store(self) -> str:
        """Hand it to the broker, which keeps it out of sight; it is durable when this returns its id."""
        self._find_home()
        return self._link.run(self._core.store())

    def commit(self) -> list[Receipt]:
        """Let everyone see it, all at once. To commit again changes nothing; after a rollback it is a `Conflict`."""
        self._link.run(self._core.commit())
        return self._core.receipts

    def rollback(self) -> None:
        """Drop it. To roll back again changes nothing; after a commit it is a `Conflict`."""
        self._link.run(self._core.rollback())

    def __enter__(self) -> Self:
        self._core.check(Phase.OPEN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and self._core.phase in (Phase.OPEN, Phase.STORED) and len(self):
            self._link.run(self._core.commit())
        elif kind is not None and self._core.phase is Phase.OPEN:
            self._core.forget()


class Checker:
    """Answers when the broker asks what became of a transaction. Made by `Client.on_check`."""

    def __init__(self, links: Sequence[Link], producer_group: str, callback: OnCheck) -> None:
        self._links = links
        self._group = check_producer_group(producer_group)
        self._callback = callback
        self._stopped = Event()
        self._workers = [Worker(f"towline-checks-{producer_group}", self._work, link) for link in links]

    def __repr__(self) -> str:
        return f"<Checker of producer group {self._group}>"

    @property
    def closed(self) -> bool:
        return self._stopped.is_set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Do not answer any more."""
        self._stopped.set()
        for link in self._links:
            link.close()
        for worker in self._workers:
            worker.end()

    def _work(self, link: Link) -> None:
        backoff = Backoff(0.1, 10.0, eager=False)
        while not self._stopped.is_set():
            try:
                for check in link.run(await_checks(self._group)):
                    self._answer(link, check)
                backoff.reset()
            except Closed:
                return
            except TowlineError as error:
                log.warning("producer group %s cannot be asked after its transactions now: %s", self._group, error)
                self._stopped.wait(backoff.next_s())

    def _answer(self, link: Link, check: Check) -> None:
        try:
            commit = verdict(outcome_of(self._callback(check)), check.transaction)
            if commit is not None:
                link.run(decide(check.transaction, commit=commit))
        except Conflict as error:
            log.warning("%s", error)
        except Closed:
            raise
        except Exception:
            log.exception(
                "what became of transaction %s could not be told; the broker will ask again", check.transaction
            )
