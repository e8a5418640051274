"""The writer: all waiting jobs go into one transaction, again and again.

While a transaction is under way the next group gathers, so that many producers share one COMMIT without anyone waiting
for a clock; a busy database makes larger groups. Their rows were encoded when they were appended, while the database
was busy with earlier ones.

A transaction inserts its rows, then comes the fence (see `ownership`): it holds off other owners, prolongs the lease,
and numbers the unit. The ends of the streams, and COMMIT, follow it. Only the fence and the statements behind it must
wait for the group before: when much waits, the rows of the next group go over a second connection meanwhile, and when
their turn comes they are there. Rows that a deposed owner inserts like that are never committed.

When anything fails, the whole group is done again under the same number until it is known to have taken place, and now
the fence comes first: it tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from towline.errors import OwnershipLost, StoreFailed, TowlineError
from towline.store.sql.database import Connection, Database
from towline.store.sql.errors import DUPLICATE, Fault, classify, code_of, explain, in_words
from towline.store.sql.ownership import Lease
from towline.store.sql.read.streams import Stream
from towline.store.sql.schema.migrate import NO_SUCH_TABLE
from towline.store.sql.schema.topic_tables import TopicTables
from towline.store.sql.write.job import Job
from towline.store.sql.write.transaction import confirm_committed, fence, insertions, rest_of

__all__ = ["Writer"]

log = logging.getLogger("towline.store")

_PAUSES_S: Final = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
_AHEAD_ROWS: Final = 400
"""So many rows must wait for a second transaction at the same time to be worth it."""


class _Turn:
    """A group and its progress."""

    __slots__ = ("connection", "group", "rows", "spreading")

    def __init__(self, group: list[Job]) -> None:
        self.group = group
        self.rows = sum([job.rows for job in group])
        self.connection: Connection | None = None
        self.spreading: asyncio.Task[None] | None = None
        """Inserts its rows before its turn has come."""

    def drop(self) -> None:
        """Everything that was begun for it is rolled back."""
        spreading, self.spreading = self.spreading, None
        if spreading is not None and not spreading.cancel() and not spreading.cancelled():
            spreading.exception()  # it is done anew, whatever it was
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.drop()


class Writer:
    """The queue in front of the database, and the task behind it."""

    def __init__(
        self, database: Database, lease: Lease, *, last_unit: int, publish: Callable[[Sequence[Job]], None]
    ) -> None:
        self._database = database
        self._lease = lease
        self._publish = publish
        self._unit = last_unit
        self._waiting: deque[Job] = deque()
        self._waiting_rows = 0
        self._turns: deque[_Turn] = deque()
        self._looking = False
        self._wake = asyncio.Event()
        self._free: list[Connection] = []
        self._maker = TopicTables(database)
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self.queued_bytes = 0
        self.last_us = 0
        self.failure: TowlineError | None = None
        """Set for good: nothing is written any more."""
        self.trouble: TowlineError | None = None
        """Set while the database does not answer …"""
        self.trouble_since_s = 0.0
        """… and since when, by the loop's clock."""
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done when nothing can be written any more."""
        self.transactions = 0
        self.ahead = 0
        """Groups that were begun before their turn."""
        self.replays = 0
        self._task = self._loop.create_task(self._run(), name="towline-sql-writer")

    def knows(self, stream: Stream) -> None:
        """The tables of this stream are in the database."""
        self._maker.knows(stream)

    def submit(self, job: Job) -> None:
        self.queued_bytes += job.size
        self._waiting.append(job)
        self._waiting_rows += job.rows
        self._wake.set()
        if self._waiting_rows >= _AHEAD_ROWS and len(self._turns) == 1 and not self._looking:
            # Behind further appends of this turn of the loop.
            self._looking = True
            self._loop.call_soon(self._look_ahead)

    async def close(self, patience_s: float) -> None:
        """Write all waiting jobs, if the database lets us, and end."""
        self._closing = True
        self._wake.set()
        _, pending = await asyncio.wait([self._task], timeout=patience_s)
        if pending:
            self._task.cancel()
            await asyncio.wait([self._task])
            reason = f": {self.trouble}" if self.trouble is not None else ""
            self._fail(StoreFailed(f"the store was closed before all was written{reason}"))
        await self._maker.close()
        for connection in self._free:
            await connection.close()

    # --- the task -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._turns or self._waiting or not self._closing:
                if not self._turns:
                    if not self._waiting:
                        await self._idle()
                    self._turns.append(_Turn(self._take()))
                self._look_ahead()
                await self._commit(self._turns[0])
                self._turns.popleft()
        except TowlineError as error:
            self._put_back()
            self._fail(error)
        except Exception as error:
            log.critical("the writer of %s failed", self._database.label, exc_info=True)
            self._put_back()
            self._fail(StoreFailed(f"writing to the database {self._database.label} failed: {in_words(error)}"))
        finally:
            self._put_back()

    async def _idle(self) -> None:
        """Wait until there is something to write, or the lease is to be renewed."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._lease.lease_s / 4):
                await self._wake.wait()

    def _take(self, most_rows: int | None = None) -> list[Job]:
        settings = self._database.settings
        most_rows = min(most_rows or settings.group_rows, settings.group_rows)
        group: list[Job] = []
        size = rows = 0
        while self._waiting:
            job = self._waiting[0]
            if group and (size + job.size > settings.group_bytes or rows + job.rows > most_rows):
                break
            group.append(self._waiting.popleft())
            size += job.size
            rows += job.rows
        self._waiting_rows -= rows
        return group

    def _look_ahead(self) -> None:
        """Begin the next group beside the one whose turn it is, if enough waits and nothing speaks against it."""
        self._looking = False
        if len(self._turns) != 1 or self._waiting_rows < _AHEAD_ROWS:
            return
        if self.trouble is not None or self._maker.indexing:
            return
        first = self._turns[0]
        # Shares of about the same size keep both connections busy.
        group = self._take(max(_AHEAD_ROWS, (first.rows + self._waiting_rows + 1) // 2))
        turn = _Turn(group)
        self._turns.append(turn)
        if self._maker.has_all(first.group) and self._maker.has_all(group):
            turn.spreading = self._loop.create_task(self._spread(turn), name="towline-sql-ahead")

    async def _spread(self, turn: _Turn) -> None:
        turn.connection = await self._connected()
        commands = await insertions(turn.connection, turn.group, self._database.settings.statement_bytes)
        await turn.connection.exchange(commands)

    async def _connected(self) -> Connection:
        """The one that has been silent for longest, so that none is for too long: an idle writer renews its lease."""
        if self._free:
            return self._free.pop(0)
        return await self._database.connect_to_write(self._lease.lease_s)

    async def _commit(self, turn: _Turn) -> None:
        attempt = 0
        while True:
            try:
                await self._transact(turn, sure=attempt == 0)
                break
            except TowlineError:
                raise
            except Exception as error:
                self._recover(turn, error, sure=attempt == 0)
            self.replays += 1
            await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
            attempt += 1
        if self.trouble is not None:
            log.warning("the database %s answers again", self._database.label)
            self.trouble = None
        if turn.connection is not None:
            self._free.append(turn.connection)
            turn.connection = None
        self._unit += 1
        self.transactions += 1
        self.queued_bytes -= sum([job.size for job in turn.group])
        self._publish(turn.group)
        for job in turn.group:
            if not job.done.done():
                job.done.set_result(None)

    async def _transact(self, turn: _Turn, *, sure: bool) -> None:
        """`sure`: that it has not taken place yet."""
        there = await self._is_spread(turn)
        if turn.connection is None:
            turn.connection = await self._connected()
            await self._make(turn.connection, turn)
        connection, number = turn.connection, self._unit + 1
        rows = [] if there else await insertions(connection, turn.group, self._database.settings.statement_bytes)
        held = fence(connection, self._lease, number, self.last_us)
        rest = rest_of(connection, turn.group, self._lease.realm_id)
        if sure:
            met = (await connection.exchange([*rows, held, *rest]))[len(rows)]
        else:
            [met] = await connection.exchange([held])
        if met != 1:
            await confirm_committed(connection, self._database, self._lease, number)
            log.info("unit %d was committed, although the answer was lost", number)
            return
        if not sure:
            await connection.exchange([*rows, *rest])
        await connection.commit()

    async def _make(self, connection: Connection, turn: _Turn) -> None:
        """Make the tables that are missing. Jobs that are refused for want of a privilege are taken out of the
        group."""
        try:
            await self._maker.make(connection, turn.group)
            return
        except Exception as error:
            if classify(error) is not Fault.DENIED:
                raise
        ready = 0
        while ready < len(turn.group):
            try:
                await self._maker.make(connection, turn.group[ready : ready + 1])
                ready += 1
            except Exception as error:
                refusal = explain(error, self._database.label)
                if classify(error) is not Fault.DENIED or not self._refuse_new(turn, ready, refusal):
                    raise

    def _refuse_new(self, turn: _Turn, ready: int, error: TowlineError) -> bool:
        """Refuse a job whose lane is new and has no table, and with it all later jobs of the same streams. False if
        something else depends on it: then everything waits until the privilege is there."""
        refused, streams = self._hanging_on(turn, ready)
        before = (entry.stream for job in turn.group[:ready] for entry in job.entries)
        later = [other for other in self._turns if other is not turn]
        begun = any(other.spreading is not None and not refused.isdisjoint(other.group) for other in later)
        if (
            begun
            or any(stream.shown for stream in streams)
            or not streams.isdisjoint(before)
            or any(job.trims or job.events for job in refused)
        ):
            return False
        log.error("%s", error)
        self._refuse(refused, error)
        return True

    def _refuse_large(self, turn: _Turn, error: TowlineError) -> None:
        """Refuse the only job of a group, whose rows the database does not take. Later jobs of the same streams count
        on its numbers, which stay taken. Raises if it is events alone, which nobody can take back."""
        [culprit] = turn.group
        if not culprit.refusable:
            raise StoreFailed(str(error)) from error
        if culprit.entries:
            culprit.hollow()
            turn.rows = culprit.rows
        else:
            turn.group, turn.rows = [], 0
            self.queued_bytes -= culprit.size
        told = not culprit.done.done()
        if told:
            culprit.done.set_exception(error)
            culprit.done.exception()
        log.log(logging.INFO if told else logging.ERROR, "%s", error)

    def _hanging_on(self, turn: _Turn, ready: int) -> tuple[set[Job], set[Stream]]:
        """A job with all later ones of the same streams, and these."""
        later = [other for other in self._turns if other is not turn]
        refused = {turn.group[ready]}
        new = {entry.stream for entry in turn.group[ready].entries}
        behind = [*turn.group[ready + 1 :], *(job for other in later for job in other.group), *self._waiting]
        while more := [job for job in behind if job not in refused and any(e.stream in new for e in job.entries)]:
            refused.update(more)
            new.update(entry.stream for job in more for entry in job.entries)
        return refused, new

    def _refuse(self, refused: set[Job], error: TowlineError) -> None:
        """Take jobs out; the numbers of their records are free again, so all behind them must be refused first."""
        for one in self._turns:
            one.group = [job for job in one.group if job not in refused]
            one.rows = sum([job.rows for job in one.group])
        self._waiting = deque(job for job in self._waiting if job not in refused)
        self._waiting_rows = sum([job.rows for job in self._waiting])
        for job in refused:
            for stream, chunk in job.entries:
                stream.next = min(stream.next, chunk.first)
            self.queued_bytes -= job.size
            if not job.done.done():
                job.done.set_exception(error)
                job.done.exception()

    def _set_apart(self, turn: _Turn, error: Exception) -> None:
        """One of the rows of a group is too large: find it by doing one job at a time, and refuse it."""
        first, *others = turn.group
        if not others:
            self._refuse_large(turn, explain(error, self._database.label))
            return
        turn.group, turn.rows = [first], first.rows
        for number, job in enumerate(others, 1):
            self._turns.insert(number, _Turn([job]))

    async def _is_spread(self, turn: _Turn) -> bool:
        """Whether its rows are there already, because we began before its turn."""
        spreading = turn.spreading
        if spreading is None:
            return False
        try:
            await spreading
        except Exception as error:
            # If there is more to it than bad luck, it will come again.
            log.debug("rows are inserted again: %s", in_words(error))
            turn.drop()
            return False
        turn.spreading = None
        self.ahead += 1
        return True

    def _recover(self, turn: _Turn, error: Exception, *, sure: bool) -> None:
        """After a failed transaction: be ready to do it again, or raise if that would not help."""
        connection, turn.connection = turn.connection, None
        for other in self._turns:
            other.drop()
        if connection is not None:
            connection.drop()
        code = code_of(error)
        match classify(error):
            case Fault.AGAIN if connection is not None:
                log.info("a transaction is done again: %s", in_words(error))
                return
            case Fault.FINAL if code == DUPLICATE and sure:
                log.info("rows are there already, and it is asked whose they are: %s", in_words(error))
                return
            case Fault.FINAL if code == NO_SUCH_TABLE and self._maker.forget():
                log.warning("a table is gone and is made anew: %s", in_words(error))
                return
            case Fault.TOO_LARGE if turn.group:
                self._set_apart(turn, error)
                return
            case Fault.TOO_LARGE | Fault.FINAL:
                raise explain(error, self._database.label) from error
        while self._free:
            self._free.pop().drop()
        denied = classify(error) is Fault.DENIED
        if connection is not None and not denied:
            self._database.left(connection)
        if self.trouble is None:
            # Nobody waits for a privilege that somebody has to grant: new jobs are refused.
            self.trouble_since_s = -math.inf if denied else self._loop.time()
            problem = "refuses a statement" if denied else "does not answer"
            log.error("the database %s %s, and is tried again: %s", self._database.label, problem, in_words(error))
        self.trouble = explain(error, self._database.label)

    def _put_back(self) -> None:
        """The task ends: jobs under way wait again."""
        while self._turns:
            turn = self._turns.pop()
            turn.drop()
            self._waiting.extendleft(reversed(turn.group))
            self._waiting_rows += turn.rows

    def _fail(self, error: TowlineError) -> None:
        if self.failure is None:
            self.failure = error
            if not self._closing or isinstance(error, OwnershipLost):
                log.critical("%s", error)
        if not self.lost.done():
            self.lost.set_result(None)
        while self._waiting:
            done = self._waiting.popleft().done
            if not done.done():
                done.set_exception(self.failure)
                done.exception()
