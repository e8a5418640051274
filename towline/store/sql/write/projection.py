"""Tables of topics, groups and progress for people, projected from the broker's documents.

The documents are the truth; these tables follow them, in the same transaction, and nothing reads them back. Only
changes since the last save are written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Table

from towline.model import GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE, check_group, check_topic, lane_name, lane_names
from towline.store.sql.schema import tables
from towline.store.sql.write.encoding import TEXT, literal
from towline.store.sql.write.rows import Row

__all__ = ["Projection", "status_view"]

log = logging.getLogger("towline.store")

_OPEN_MAX: Final = 1_000
"""Ranges of one group that are shown: a group that fails everything has very many."""
_VIEW_LANES_MAX: Final = 64


class _Offsets(msgspec.Struct):
    """Groups in which nothing has happened are not even decoded."""

    groups: list[msgspec.Raw] = []


class _Topics(msgspec.Struct):
    """Nor are topics and groups whose settings are as before: there may be tens of thousands of them."""

    topics: list[msgspec.Raw] = []
    lines: list[Any] = msgspec.field(name="businessLines", default_factory=list)


class _Groups(msgspec.Struct):
    groups: list[msgspec.Raw] = []


class _Topic(NamedTuple):
    name: str
    shards: int
    line: str


class Projection:
    def __init__(self, realm_id: int, epoch: int) -> None:
        self._realm_id = realm_id
        self._epoch = epoch
        self._topics: dict[bytes, _Topic] = {}
        """The topics of the last such document, by their bytes there."""
        self._groups: dict[bytes, tuple[str, str]] = {}
        """And the groups."""
        self._offsets: dict[bytes, tuple[str, str]] = {}
        """The groups of the last such document, by their bytes there."""
        self._shards: dict[str, int] = {}
        self._known: set[str] = set()
        self._lines: list[str] | None = None

    def follow(self, name: str, document: bytes) -> tuple[list[bytes], set[Table]]:
        """The statements that show a document, and the tables that must be there for them."""
        if name not in (TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE):
            return [], set()
        try:
            if name == OFFSETS_FILE:
                return self._show_offsets(msgspec.json.decode(document, type=_Offsets).groups)
            if name == TOPICS_FILE:
                decoded = msgspec.json.decode(document, type=_Topics)
                return [*self._show_topics(decoded.topics), *self._show_lines(decoded.lines)], set()
            return list(self._show_groups(msgspec.json.decode(document, type=_Groups).groups)), set()
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
            log.warning("document %s is not shown in tables: %s", name, error)
            return [], set()

    def _show_topics(self, topics: Iterable[msgspec.Raw]) -> Iterator[bytes]:
        found: dict[bytes, _Topic] = {}
        changed: dict[str, dict[str, Any]] = {}
        for text in map(bytes, topics):
            known = self._topics.get(text)
            if known is None:
                one = msgspec.json.decode(text, type=dict[str, Any])
                line = str(one.get("business_line") or "")[:64]
                known = _Topic(check_topic(one["name"]), int(one.get("shards", 0)), line)
                changed[known.name] = one
            found[text] = known
        now = {one.name: one for one in found.values()}
        before = {one.name for one in self._topics.values()}
        self._topics = found
        self._shards = {name: one.shards for name, one in now.items()}
        if TOPICS_FILE not in self._known:
            yield b"DELETE FROM `mq_topic` WHERE `realm_id` = %d" % self._realm_id + _not_in(b"`topic`", now)
            self._known.add(TOPICS_FILE)
        for name in before - now.keys():
            yield b"DELETE FROM `mq_topic` WHERE `topic` = " + literal(name)
        columns = ("topic", "realm_id", "shards", "author", "alarm_emails", "settings")
        yield from _upsert(
            "mq_topic",
            columns,
            [
                (
                    name,
                    self._realm_id,
                    self._shards[name],
                    _shown(one.get("author"), 64),
                    _shown(one.get("alarm_emails"), 255),
                    msgspec.json.encode(one).decode(),
                )
                for name, one in changed.items()
            ],
        )
        for line in sorted({one.line for one in now.values()} - {""}):
            yield b"INSERT IGNORE INTO `mq_biz` (`name`) VALUES (%b)" % literal(line)
        without = []
        for name in changed:
            line = now[name].line
            if not line:
                without.append(literal(name))
                continue
            yield (
                b"UPDATE `mq_topic` SET `biz_id` = (SELECT `id` FROM `mq_biz` WHERE `name` = %b) WHERE `topic` = %b"
                % (literal(line), literal(name))
            )
        for at in range(0, len(without), 500):
            names = b",".join(without[at : at + 500])
            yield b"UPDATE `mq_topic` SET `biz_id` = 0 WHERE `biz_id` <> 0 AND `topic` IN (%b)" % names

    def _show_lines(self, lines: Iterable[Any]) -> Iterator[bytes]:
        """The order of business lines: 1, 2, 3, … for those that have a place, 0 for others."""
        now = [str(line)[:64] for line in lines]
        if now == self._lines:
            return
        self._lines = now
        yield b"UPDATE `mq_biz` SET `position` = 0 WHERE `position` <> 0" + _not_in(b"`name`", now)
        yield from _upsert("mq_biz", ("name", "position"), [(line, place) for place, line in enumerate(now, 1)])

    def _show_groups(self, groups: Iterable[msgspec.Raw]) -> Iterator[bytes]:
        found: dict[bytes, tuple[str, str]] = {}
        rows: list[Row] = []
        for text in map(bytes, groups):
            known = self._groups.get(text)
            if known is None:
                one = msgspec.json.decode(text, type=dict[str, Any])
                known = check_topic(one["topic"]), check_group(one["name"])
                rows.append((*known, self._realm_id, msgspec.json.encode(one).decode()))
            found[text] = known
        gone = set(self._groups.values()) - set(found.values())
        if GROUPS_FILE not in self._known:
            yield b"DELETE FROM `mq_group` WHERE `realm_id` = %d" % self._realm_id
            self._known.add(GROUPS_FILE)
        for topic, group in gone:
            for table in (b"mq_group", b"mq_open"):
                yield b"DELETE FROM `%b` WHERE `topic` = %b AND `group_id` = %b" % (
                    table,
                    literal(topic),
                    literal(group),
                )
        if gone:
            self._offsets = {text: group for text, group in self._offsets.items() if group not in gone}
        self._groups = found
        yield from _upsert("mq_group", ("topic", "group_id", "realm_id", "settings"), rows)

    def _show_offsets(self, groups: Iterable[msgspec.Raw]) -> tuple[list[bytes], set[Table]]:
        statements: list[bytes] = []
        needed: set[Table] = set()
        known, self._offsets = self._offsets, {}
        for text in map(bytes, groups):
            if text in known:
                self._offsets[text] = known[text]
                continue
            one = msgspec.json.decode(text, type=dict[str, Any])
            topic, group = check_topic(one["topic"]), check_group(one["group"])
            self._offsets[text] = topic, group
            table = tables.progress_table(topic)
            needed.add(table)
            offsets: Mapping[str, int] = one["offsets"]
            shards = self._shards.get(topic, sum(name.isdigit() for name in offsets))
            rows: list[Row] = [(group, "", name, offset, self._epoch) for name, offset in offsets.items()]
            columns = ("group_id", "token", "priority", "offset", "epoch")
            statements += _upsert(table.name, columns, rows)
            where = b"`topic` = %b AND `group_id` = %b" % (literal(topic), literal(group))
            statements.append(b"DELETE FROM `mq_open` WHERE " + where)
            opened = [(topic, group, *row, self._realm_id) for row in _open_parts(one, shards)]
            statements += _upsert("mq_open", _OPEN_COLUMNS, opened[:_OPEN_MAX])
        return statements, needed


_OPEN_COLUMNS: Final = (
    "topic",
    "group_id",
    "lane",
    "first_id",
    "last_id",
    "status",
    "attempt",
    "consumer",
    "reason",
    "due_us",
    "realm_id",
)


def _open_parts(group: Mapping[str, Any], shards: int) -> Iterator[Row]:
    """The leased, retrying and dying parts. A part is lane, first, count, attempt."""
    for lease in group.get("leases", ()):
        for lane, first, count, attempt in lease.get("open", ()):
            name = lane_name(lane, shards)
            yield name, first, first + count - 1, "RUNNING", attempt, lease["consumer"], None, None
    for (lane, first, count, attempt), due_us, *_ in group.get("retries", ()):
        status = "FAIL" if attempt > 1 else "NEW"  # given back, without having failed
        yield lane_name(lane, shards), first, first + count - 1, status, attempt, None, None, due_us
    for (lane, first, count, attempt), reason in group.get("dying", ()):
        yield lane_name(lane, shards), first, first + count - 1, "DEAD", attempt, None, reason, None


def _upsert(table: str, columns: tuple[str, ...], rows: list[Row]) -> list[bytes]:
    if not rows:
        return []
    names = ", ".join(f"`{name}`" for name in columns)
    changes = ", ".join(f"`{name}` = VALUES(`{name}`)" for name in columns)
    head = f"INSERT INTO `{table}` ({names}) VALUES ".encode()  # noqa: S608 - names of ours, checked and quoted
    tail = f" ON DUPLICATE KEY UPDATE {changes}".encode()
    return [head + TEXT.rows(rows[at : at + 500]).data + tail for at in range(0, len(rows), 500)]


def _not_in(column: bytes, names: Iterable[str]) -> bytes:
    listed = b",".join(map(literal, names))
    return b" AND %b NOT IN (%b)" % (column, listed) if listed else b""


def _shown(value: Any, limit: int) -> str | None:
    if not value:
        return None
    return (", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))[:limit]


def status_view(topic: str, lanes: Iterable[str]) -> str:
    """The view `msg_v_<topic>`: every message of these lanes once for each group, with its status there."""
    check_topic(topic)
    known = (*lane_names(0), *lane_names(1024))
    parts = []
    for lane in sorted(lanes, key=known.index)[:_VIEW_LANES_MAX]:
        messages, progress = tables.lane_table(topic, lane), tables.progress_table(topic)
        parts.append(
            f"SELECT c.group_id, '{lane}' AS priority, m.id, m.ref_key, m.appended_at, "  # noqa: S608 - checked names
            "CASE WHEN d.id IS NOT NULL THEN 'DEAD' WHEN o.status IS NOT NULL THEN o.status "
            "WHEN m.id < c.`offset` THEN 'SUCCESS' ELSE 'NEW' END AS status, "
            "o.attempt, o.consumer, o.due_at, COALESCE(d.reason, o.reason) AS reason "
            f"FROM {tables.quoted(messages)} m JOIN {tables.quoted(progress)} c ON c.priority = '{lane}' "
            f"LEFT JOIN mq_open o ON o.topic = '{topic}' AND o.group_id = c.group_id AND o.lane = '{lane}' "
            "AND m.id BETWEEN o.first_id AND o.last_id "
            f"LEFT JOIN mq_dead_letter d ON d.origin = CONCAT('{topic}/{lane}/', m.id) AND d.group_id = c.group_id"
        )
    return f"CREATE OR REPLACE VIEW `msg_v_{topic}` AS " + " UNION ALL ".join(parts)
