"""Connections to a database: opened on one of its hosts, made ready, and kept for the next reader."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from asyncmy.connection import Connection as RawConnection
from asyncmy.constants.CLIENT import FOUND_ROWS
from asyncmy.constants.COMMAND import COM_QUERY
from asyncmy.errors import OperationalError
from sqlalchemy.dialects import mysql
from sqlalchemy.sql import ClauseElement

from towline.errors import Closed, StoreFailed, TowlineError
from towline.store.sql.errors import NOT_ENCRYPTED, PACKET, Fault, classify, explain, in_words
from towline.store.sql.settings import SqlSettings
from towline.store.sql.timeout import within
from towline.store.sql.write.encoding import BULK, TEXT, Encoding, Into

__all__ = ["Command", "Connection", "Database"]

log = logging.getLogger("towline.store")
logging.getLogger("asyncmy").setLevel(logging.ERROR)  # it would report every table that is there already

T = TypeVar("T")

_DIALECT: Final = mysql.dialect(paramstyle="format")
_READY: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'",
    "SET SESSION innodb_lock_wait_timeout = 5",
)
_CONNECT_S: Final = 5
_READ_PAUSE_S: Final = 0.2
_PREPARED_MAX: Final = 500
_COM_STMT_BULK_EXECUTE: Final = 0xFA
_SEND_TYPES: Final = b"\x80\x00"


class _Compiled(NamedTuple):
    text: str
    names: Sequence[str]
    defaults: Mapping[str, Any]


_COMPILED: dict[int, tuple[ClauseElement, _Compiled]] = {}
_COMPILED_MAX: Final = 10_000


def _compiled(statement: ClauseElement) -> _Compiled:
    """The text of a statement, compiled once. The statement is kept too, so that its id stays its own."""
    known = _COMPILED.get(id(statement))
    if known is None:
        made = statement.compile(dialect=_DIALECT)
        text = str(made)
        names = getattr(made, "positiontup", None) or ()
        known = (statement, _Compiled(text, names, getattr(made, "params", {})))
        if len(_COMPILED) >= _COMPILED_MAX:
            _COMPILED.clear()
        _COMPILED[id(statement)] = known
    return known[1]


class Command(NamedTuple):
    """A statement in the form in which it is sent, and its first bytes."""

    code: int
    payload: bytes


class Connection:
    """One connection. Any error but a refused statement leaves it unusable: drop it."""

    def __init__(self, raw: Any, answer_s: float, host: tuple[str, int]) -> None:
        self._raw = raw
        self._answer_s = answer_s
        self._prepared: OrderedDict[str, Any] = OrderedDict()
        """Statements by their first bytes; the one that was used last comes last."""
        self._retired: list[Any] = []
        """Statements that are closed when the transaction ends: its commands may name them."""
        self.encoding: Encoding = TEXT
        """Of rows; known once it is connected."""
        self.packet_bytes = 1 << 30
        """The longest command that the server takes; known once it is connected."""
        self.host = host

    async def send(self, text: str | bytes) -> int:
        """Run a statement as it stands; returns the number of rows it met."""
        async with within(self._answer_s):
            return int(await self._raw.query(text))

    async def run(self, statement: ClauseElement, *, patience_s: float | None = None, **values: Any) -> int:
        """Run a statement; returns the number of rows it met."""
        async with within(self._answer_s if patience_s is None else patience_s):
            return int(await self._cursor_run(self._raw.cursor(), statement, values))

    async def insertion(self, where: Into, runs: Sequence[bytes]) -> Command:
        """The command that inserts these rows. MariaDB takes them in binary, for half of the cost of reading them from
        text; its statement is prepared once for each connection."""
        if self.encoding is TEXT:
            return Command(COM_QUERY, where.head.encode() + self.encoding.separator.join(runs))
        statement = self._prepared.get(where.head)
        if statement is None:
            async with within(self._answer_s):
                statement = await self._prepare(where.head, where.width)
        else:
            self._prepared.move_to_end(where.head)
        begin = statement._statement_id.to_bytes(4, "little") + _SEND_TYPES + where.types
        return Command(_COM_STMT_BULK_EXECUTE, b"".join((begin, *runs)))

    async def _prepare(self, head: str, width: int) -> Any:
        if len(self._prepared) >= _PREPARED_MAX:
            self._retired.append(self._prepared.popitem(last=False)[1])
        marks = ", ".join("?" * width)
        statement = self._prepared[head] = await self._raw.prepare(f"{head}({marks})")
        return statement

    def query(self, statement: ClauseElement | bytes, **values: Any) -> Command:
        """The command that runs a statement."""
        if isinstance(statement, bytes):
            return Command(COM_QUERY, statement)
        text, names, defaults = _compiled(statement)
        made = self._raw.cursor().mogrify(text, [values.get(name, defaults.get(name)) for name in names])
        return Command(COM_QUERY, made.encode("utf-8", "surrogateescape"))

    async def exchange(self, commands: Sequence[Command]) -> list[int]:
        """Run commands one after the other; returns how many rows each met. To MariaDB they go all at once, so that it
        need not wait for us between them: none of them may depend on the answer of another. After an error those behind
        it may have been run as well, in a transaction that must not be committed: drop the connection."""
        raw, met = self._raw, []
        longest = max((len(command.payload) for command in commands), default=0) + 1
        if longest > self.packet_bytes:
            # The server would break the connection while it is being sent, without a reason.
            raise OperationalError(PACKET, f"a command of {longest} bytes, {self.packet_bytes} may be sent")
        if self.encoding is TEXT:  # others may not expect it, nor the proxies between
            for code, payload in commands:
                async with within(self._answer_s):
                    await raw._execute_command(code, payload)
                    met.append(await self._answer())
            return met
        numbers = []
        for code, payload in commands:
            async with within(self._answer_s):
                await raw._execute_command(code, payload)
            numbers.append(raw._next_seq_id)
        for number in numbers:
            raw._next_seq_id = number
            async with within(self._answer_s):
                met.append(await self._answer())
        return met

    async def _answer(self) -> int:
        await self._raw._read_query_result()
        return int(self._raw._affected_rows)

    async def rows(self, statement: ClauseElement, **values: Any) -> Sequence[tuple[Any, ...]]:
        async with within(self._answer_s):
            cursor = self._raw.cursor()
            await self._cursor_run(cursor, statement, values)
            return await cursor.fetchall()  # type: ignore[no-any-return]

    async def _cursor_run(self, cursor: Any, statement: ClauseElement, values: Mapping[str, Any]) -> int:
        text, names, defaults = _compiled(statement)
        return await cursor.execute(text, [values.get(name, defaults.get(name)) for name in names])  # type: ignore[no-any-return]

    async def begin(self) -> None:
        await self.send("BEGIN")

    async def commit(self) -> None:
        await self.send("COMMIT")
        while self._retired:
            async with within(self._answer_s):
                await self._retired.pop().close()

    async def rollback(self) -> None:
        await self.send("ROLLBACK")

    async def close(self) -> None:
        """Say good-bye."""
        with contextlib.suppress(Exception):
            async with within(1):
                await self._raw.ensure_closed()
        self.drop()

    def drop(self) -> None:
        """Close it without a word: its server may not answer any more."""
        with contextlib.suppress(Exception):
            self._raw.close()


async def _log_in(raw: Any) -> None:
    """MySQL's own kind of password (`caching_sha2_password`) must be encrypted, unless the server has it in its memory:
    by TLS, or else with a key from the server, for which the driver wants another package."""
    try:
        await raw.connect()
    except RuntimeError as error:
        if "cryptography" not in str(error):
            raise
        raise OperationalError(NOT_ENCRYPTED, "Authentication requires secure connection") from None


class Database:
    """A database on one or more hosts. The host in use stays in use until it fails, so that writes can be read; then it
    is the next one's turn."""

    def __init__(self, settings: SqlSettings) -> None:
        self.settings = settings
        self.label = settings.label
        self.mariadb = False
        self.galera = False
        self.tidb = False
        self.version = ""
        self.trouble: TowlineError | None = None
        """The error of the last read, if it failed."""
        self.encoding: Encoding = TEXT
        """The encoding of rows for this database; known from the first connection on."""
        self._tls = settings.tls()
        self._host = 0
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(settings.readers)
        self._closed = False

    async def connect(self) -> Connection:
        """A connection to the host in use, or to the next one that answers. Raises the error of the last one."""
        problem: BaseException = ConnectionError("no host")
        for _ in self.settings.hosts:
            index = self._host
            try:
                return await self._connect(self.settings.hosts[index])
            except Exception as error:
                if classify(error) is Fault.FINAL:
                    raise
                problem = error
                self.leave(index)
        raise problem

    async def connect_to_write(self, lease_s: float) -> Connection:
        """A connection whose statements begin a transaction if there is none. A broker that hangs within one must not
        keep the lock of its realm: the server ends a connection that is silent, or amid a statement, for as long as the
        lease. So it must be used more often than that."""
        connection = await self.connect()
        silent_s = max(1, math.ceil(lease_s))
        limits = f"net_read_timeout = {silent_s}" + ("" if self.mariadb else f", wait_timeout = {silent_s}")
        try:
            await connection.send(f"SET SESSION autocommit = 0, {limits}")
        except BaseException:
            connection.drop()
            raise
        return connection

    def leave(self, index: int | None = None) -> None:
        """Try another host next time."""
        if index is None or index == self._host:
            self._host = (self._host + 1) % len(self.settings.hosts)
            while self._idle:
                self._idle.pop().drop()

    def left(self, connection: Connection) -> None:
        """This connection failed: its host may be gone."""
        connection.drop()
        if connection.host == self.settings.hosts[self._host]:
            self.leave()

    async def _connect(self, host: tuple[str, int]) -> Connection:
        settings = self.settings
        make: Any = RawConnection  # it says nothing of its types
        raw = make(
            host=host[0],
            port=host[1],
            user=settings.user,
            password=settings.password,
            database=settings.database,
            charset="utf8mb4",
            autocommit=True,
            binary_prefix=True,
            client_flag=FOUND_ROWS,
            ssl=self._tls,
            program_name="towline",
        )
        # Ours will do. With its own limit, a socket that is open in the very moment in which we are cancelled is lost.
        raw._connect_timeout = None
        connection = Connection(raw, settings.answer_s, host)
        try:
            async with within(_CONNECT_S):
                await _log_in(raw)
            # An encrypted connection has no bulk protocol, whatever the driver thinks: it does not ask for it in time.
            connection.encoding = BULK if raw._bulk_supported and self._tls is None else TEXT
            await self._make_ready(connection)
        except BaseException:
            connection.drop()
            raise
        return connection

    async def _make_ready(self, connection: Connection) -> None:
        if self.version and connection.encoding is not self.encoding:
            raise StoreFailed(f"the hosts of {self.label} are servers of different kinds: name those of one cluster")
        if not self.version:
            self.encoding = connection.encoding
            self.version = str((await self._fetch(connection, "SELECT VERSION()"))[0][0])
            self.mariadb = "mariadb" in self.version.lower()
            self.tidb = "tidb" in self.version.lower()
            found = await self._fetch(connection, "SHOW VARIABLES LIKE 'wsrep_on'")
            self.galera = bool(found) and str(found[0][1]).upper() in {"ON", "1"}
        for text in _READY:
            await connection.send(text)
        connection.packet_bytes = int((await self._fetch(connection, "SELECT @@max_allowed_packet"))[0][0])
        if self.mariadb:
            # Others know no limit for transactions alone, see `connect_to_write`.
            await connection.send("SET SESSION idle_write_transaction_timeout = 1")
        if self.galera:
            # A read must see what was written through another node before it.
            await connection.send("SET SESSION wsrep_sync_wait = 1")

    @staticmethod
    async def _fetch(connection: Connection, text: str) -> Sequence[tuple[Any, ...]]:
        async with within(connection._answer_s):
            cursor = connection._raw.cursor()
            await cursor.execute(text)
            return await cursor.fetchall()  # type: ignore[no-any-return]

    async def variables(self) -> dict[str, str]:
        """The settings of the server, by name."""

        async def ask(connection: Connection) -> dict[str, str]:
            return {str(name): str(value) for name, value in await self._fetch(connection, "SHOW GLOBAL VARIABLES")}

        return await self.reading(ask)

    @contextlib.asynccontextmanager
    async def borrow(self) -> AsyncIterator[Connection]:
        """A connection for one transaction, or for statements that are one each. After an error it is not used again,
        unless the error says that the transaction was rolled back."""
        async with self._room:
            if self._closed:
                raise Closed(f"the store in {self.label} was closed")
            connection = self._idle.pop() if self._idle else await self.connect()
            try:
                yield connection
            except TowlineError:
                self._give_back(connection)
                raise
            except Exception as error:
                if classify(error) in {Fault.AGAIN, Fault.FULL, Fault.DENIED, Fault.TOO_LARGE}:
                    with contextlib.suppress(Exception):
                        await connection.rollback()
                        self._give_back(connection)
                    raise
                self.left(connection)
                raise
            except BaseException:
                connection.drop()
                raise
            else:
                self._give_back(connection)

    def _give_back(self, connection: Connection) -> None:
        if self._closed or connection.host != self.settings.hosts[self._host]:
            connection.drop()
        else:
            self._idle.append(connection)

    async def reading(self, what: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a function that may be repeated: on another connection when one fails, until the patience ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.wait_s
        while True:
            try:
                async with self.borrow() as connection:
                    found = await what(connection)
                self.trouble = None
                return found
            except TowlineError:
                raise
            except Exception as error:
                self.trouble = explain(error, self.label)
                if classify(error) not in {Fault.AGAIN, Fault.ELSEWHERE} or loop.time() >= deadline:
                    raise explain(error, self.label) from error
                log.debug("the database %s is asked again: %s", self.label, in_words(error))
                await asyncio.sleep(_READ_PAUSE_S)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().close()
