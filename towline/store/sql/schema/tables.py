"""The tables of a database, as SQLAlchemy Core: the fixed ones, and those that every topic has.

    mq_schema        the version of all this
    mq_realm         who owns what: owner, epoch, lease, and the number of the last unit that was committed
    mq_stream        every stream: its first and next number, and its bytes
    mq_frame         the frames of lanes without their bodies, and those of streams that have no table of their own
    mq_pull_log      the frames of pull logs, with the events as JSON
    mq_schedule      the frames of delayed messages, by when they are due
    mq_dead_letter   dead letters, a row a message
    mq_document      small documents: topics, groups, snapshots
    mq_topic         topics, their business line, author and alarm e-mails; mq_biz the business lines
    mq_group         groups and their settings; mq_open what a group has open
    mq_registry      brokers and consumers that beat

    msg_p_<topic>_<priority>   a lane: a row a message, its id is its sequence number
    msg_c_<topic>              how far each group is on each lane
    msg_v_<topic>              a view: the status of every message in every group

Numbers of microseconds end in `_us`; beside them stands the same time for people.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Computed, Index, Integer, MetaData, SmallInteger, String, Table, Text, text
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects.mysql import DATETIME, LONGBLOB, LONGTEXT, VARBINARY

from towline.format import FORMAT

__all__ = [
    "FIXED",
    "KEY_CHARACTERS",
    "VERSION",
    "biz",
    "dead_letter",
    "document",
    "frame",
    "group",
    "key_index",
    "lane_table",
    "open_part",
    "progress_table",
    "pull_log",
    "quoted",
    "realm",
    "registry",
    "schedule",
    "schema",
    "stream",
    "topic",
]

VERSION: Final = FORMAT
KEY_CHARACTERS: Final = 191
"""The part of a key that is in its column and index; the rest is in the frame."""

FIXED = MetaData()
_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_default_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mysql_row_format": "DYNAMIC",
}
_LAST_US: Final = 253_402_300_799_999_999
_PREPARER = mysql.dialect().identifier_preparer


def quoted(table: Table) -> str:
    return str(_PREPARER.quote_identifier(table.name))


def _number(name: str, **options: Any) -> Column[int]:
    return Column(name, BigInteger, nullable=False, autoincrement=False, **options)


def _time_of(us: str, name: str) -> Column[Any]:
    """The same time for people, in UTC; computed when it is read. MySQL also computes it when a row is written, and
    refuses the row if there is no such time: it ends with the year 9999."""
    bounded = f"LEAST(GREATEST({us}, 0), {_LAST_US})"
    return Column(name, DATETIME(fsp=6), Computed(f"'1970-01-01' + INTERVAL {bounded} MICROSECOND", persisted=False))


schema = Table("mq_schema", FIXED, _number("version", primary_key=True), **_OPTIONS)

realm = Table(
    "mq_realm",
    FIXED,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(50), nullable=False, unique=True),
    Column("owner", String(100), nullable=False, server_default=""),
    Column("address", String(255), nullable=False, server_default=""),
    Column("heir", String(100), nullable=False, server_default=""),
    _number("epoch", server_default="0"),
    Column("expires_at", DATETIME(fsp=6), nullable=False, server_default=text("'2000-01-01'")),
    _number("last_unit", server_default="0"),
    _number("last_us", server_default="0"),
    **_OPTIONS,
)

stream = Table(
    "mq_stream",
    FIXED,
    _number("id", primary_key=True),
    Column("realm_id", Integer, nullable=False),
    Column("name", String(255), nullable=False),
    _number("first_seq", server_default="0"),
    _number("next_seq", server_default="0"),
    _number("size_bytes", server_default="0"),
    _number("swept_seq", server_default="0"),
    Index("mq_stream_name", "realm_id", "name", unique=True),
    **_OPTIONS,
)


def _frame_table(name: str, *columns: Any) -> Table:
    """Frames by the number behind their last record, so that the one with a given record is the next in the index."""
    return Table(
        name,
        FIXED,
        _number("stream_id", primary_key=True),
        _number("end_seq", primary_key=True),
        Column("records", Integer, nullable=False),
        Column("length", Integer, nullable=False),
        _number("serial"),
        _number("at_us"),
        Column("source_ip", VARBINARY(16), nullable=False),
        Column("body_at", Integer, nullable=False),
        Column("frame", LONGBLOB, nullable=False),
        *columns,
        _time_of("at_us", "at"),
        **_OPTIONS,
    )


frame = _frame_table("mq_frame")
pull_log = _frame_table("mq_pull_log", Column("events", LONGTEXT, nullable=True))
schedule = _frame_table(
    "mq_schedule",
    Column("due_us", BigInteger, nullable=True),
    Column("parcels", LONGTEXT, nullable=True),
    _time_of("due_us", "due_at"),
    Index("mq_schedule_due", "due_us"),
)


def _message_columns() -> tuple[Any, ...]:
    return (
        Column("body", LONGBLOB, nullable=False),
        Column("source_ip", VARBINARY(16), nullable=False),
        Column("token", String(64), nullable=False),
        Column("appended_us", BigInteger, nullable=False),
        Column("ref_key", String(KEY_CHARACTERS), nullable=True),
        Column("headers", LONGTEXT, nullable=True),
        Column("dedup_id", Text, nullable=True),
        Column("shard_key", Text, nullable=True),
        Column("expires_us", BigInteger, nullable=True),
        Column("deliver_us", BigInteger, nullable=True),
        Column("timeout_us", BigInteger, nullable=True),
        Column("produced_us", BigInteger, nullable=True),
        _time_of("appended_us", "appended_at"),
        _time_of("expires_us", "expires_at"),
        _time_of("produced_us", "produced_at"),
    )


dead_letter = Table(
    "mq_dead_letter",
    FIXED,
    _number("stream_id", primary_key=True),
    _number("id", primary_key=True),
    *_message_columns(),
    Column("group_id", String(51), nullable=False),
    Column("origin", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Index("mq_dead_letter_key", "ref_key"),
    Index("mq_dead_letter_origin", "origin"),
    **_OPTIONS,
)

document = Table(
    "mq_document",
    FIXED,
    Column("realm_id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(200), primary_key=True),
    Column("body", LONGBLOB, nullable=False),
    Column("saved_at", DATETIME(fsp=6), nullable=False),
    **_OPTIONS,
)

biz = Table(
    "mq_biz",
    FIXED,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("position", Integer, nullable=False, server_default="0"),
    **_OPTIONS,
)

topic = Table(
    "mq_topic",
    FIXED,
    Column("topic", String(50), primary_key=True),
    Column("realm_id", Integer, nullable=False),
    Column("biz_id", Integer, nullable=False, server_default="0"),
    Column("author", String(64), nullable=True),
    Column("alarm_emails", String(255), nullable=True),
    Column("shards", SmallInteger, nullable=False, server_default="0"),
    Column("settings", LONGTEXT, nullable=True),
    **_OPTIONS,
)

group = Table(
    "mq_group",
    FIXED,
    Column("topic", String(50), primary_key=True),
    Column("group_id", String(51), primary_key=True),
    Column("realm_id", Integer, nullable=False),
    Column("settings", LONGTEXT, nullable=True),
    **_OPTIONS,
)

open_part = Table(
    "mq_open",
    FIXED,
    Column("topic", String(50), primary_key=True),
    Column("group_id", String(51), primary_key=True),
    Column("lane", String(20), primary_key=True),
    _number("first_id", primary_key=True),
    _number("last_id"),
    Column("status", String(10), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("consumer", String(50), nullable=True),
    Column("reason", Text, nullable=True),
    Column("due_us", BigInteger, nullable=True),
    Column("realm_id", Integer, nullable=False),
    _time_of("due_us", "due_at"),
    **_OPTIONS,
)

registry = Table(
    "mq_registry",
    FIXED,
    Column("kind", String(20), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("address", String(255), nullable=False, server_default=""),
    Column("data", LONGTEXT, nullable=False),
    Column("since", DATETIME(fsp=6), nullable=False),
    Column("beat_at", DATETIME(fsp=6), nullable=False),
    **_OPTIONS,
)


@lru_cache(maxsize=4096)
def lane_table(topic_name: str, lane: str) -> Table:
    name = f"msg_p_{topic_name}_{lane}"
    return Table(
        name,
        MetaData(),
        _number("id", primary_key=True),
        *_message_columns(),
        comment=f"Towline. Topic: {topic_name}; priority: {lane}.",
        **_OPTIONS,
    )


@lru_cache(maxsize=4096)
def key_index(table: Table) -> Index:
    """Of the keys of a lane. It is made when the first message with a key comes: it would cost all others a third."""
    return Index("ref_key", Table(table.name, MetaData(), Column("ref_key", String(KEY_CHARACTERS))).c.ref_key)


@lru_cache(maxsize=4096)
def progress_table(topic_name: str) -> Table:
    return Table(
        f"msg_c_{topic_name}",
        MetaData(),
        Column("id", BigInteger, primary_key=True, autoincrement=True),
        Column("group_id", String(51), nullable=False),
        Column("token", String(64), nullable=False, server_default=""),
        Column("priority", String(20), nullable=False),
        _number("offset", quote=True),
        _number("epoch", server_default="0"),
        Index("progress", "group_id", "token", "priority", unique=True),
        comment=f"Towline. How far the groups of topic {topic_name} are: the next id of each lane to deliver.",
        **_OPTIONS,
    )
