"""The metrics in Prometheus' text format: names, types and helps are the table below."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from towline.broker.access.permissions import figures_seen
from towline.clock import TimeSlice
from towline.protocol.access import GroupFigures, Measure, Measured, TopicFigures
from towline.store import Histogram
from towline.store.histogram import BOUNDS_S

if TYPE_CHECKING:
    from towline.broker.access.rules import May
    from towline.broker.broker import Broker

__all__ = ["CONTENT_TYPE", "exposition"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

BROKER: Final = (
    ("towline_uptime_seconds", "gauge", "How long the broker has run.", "uptime_s"),
    ("towline_connections", "gauge", "Connections of clients.", "connections"),
    ("towline_unread_bytes", "gauge", "Bytes of answers that clients have not taken yet.", "unread_bytes"),
    ("towline_cut_readers_total", "counter", "Clients closed because all left too much unread.", "cut_readers"),
    ("towline_topics", "gauge", "Topics.", "topics"),
    ("towline_groups", "gauge", "Groups of all topics.", "groups"),
    ("towline_consumers", "gauge", "Consumers that are attached.", "members"),
    ("towline_received_messages_total", "counter", "Messages taken from producers.", "messages_in"),
    ("towline_received_bytes_total", "counter", "Bytes of frames taken from producers.", "bytes_in"),
    ("towline_delivered_messages_total", "counter", "Messages handed to consumers.", "messages_out"),
    ("towline_prepared_transactions", "gauge", "Prepared transactions that wait to be decided.", "prepared"),
    ("towline_dedup_ids", "gauge", "Dedup ids that are remembered.", "dedup_ids"),
    (
        "towline_dedup_forgotten_early_total",
        "counter",
        "Dedup ids that were forgotten before their window had passed, because too many came.",
        "dedup_forgotten_early",
    ),
    ("towline_remembered_producers", "gauge", "Producers whose last frames are remembered.", "remembered_producers"),
    (
        "towline_loop_stalls_total",
        "counter",
        "Steps of the broker's own work that held the event loop for 20 ms and more.",
        "loop_stalls",
    ),
    (
        "towline_snapshot_seconds",
        "gauge",
        "How long the last snapshots took, with all that they waited for.",
        "snapshot_s",
    ),
    (
        "towline_snapshot_age_seconds",
        "gauge",
        "How long ago the last snapshots were complete, or the broker began.",
        "snapshot_age_s",
    ),
    (
        "towline_retention_held_seconds",
        "gauge",
        "For how long an open message has held retention back.",
        "retention_held_s",
    ),
    (
        "towline_retention_held_bytes",
        "gauge",
        "By how much the store is larger than its limit because of open messages.",
        "retention_held_bytes",
    ),
    (
        "towline_retention_dropped_open_total",
        "counter",
        "Open messages that retention waited for in vain, and dropped.",
        "retention_dropped_open",
    ),
    ("towline_groups_expiring", "gauge", "Groups that are removed soon, because nobody uses them.", "groups_expiring"),
    ("towline_groups_removed_total", "counter", "Groups removed because nobody used them.", "groups_removed"),
    ("towline_delayed_delivered_total", "counter", "Delayed messages that were delivered.", "delayed_delivered"),
)
TOPIC: Final = (
    ("towline_topic_messages_in_total", "counter", "Messages ever appended to the topic.", "messages_in"),
    ("towline_topic_bytes_in_total", "counter", "Bytes of frames appended since the broker started.", "bytes_in"),
    ("towline_topic_kept_messages", "gauge", "Messages that are kept, consumed or not.", "kept"),
    ("towline_topic_kept_bytes", "gauge", "Bytes that are kept.", "kept_bytes"),
    ("towline_topic_delayed_messages", "gauge", "Messages that wait for their time.", "delayed"),
)
GROUP: Final = (
    ("towline_group_messages_out_total", "counter", "Messages delivered since the broker started.", "messages_out"),
    ("towline_group_bytes_out_total", "counter", "Bytes of frames delivered since the broker started.", "bytes_out"),
    ("towline_group_acks_total", "counter", "Acknowledgements, each of one message or many.", "acks"),
    ("towline_group_nacks_total", "counter", "Negative acknowledgements, each of one message or many.", "nacks"),
    ("towline_group_backlog_messages", "gauge", "Messages neither consumed nor dead.", "backlog"),
    ("towline_group_in_flight_messages", "gauge", "Messages that consumers hold.", "in_flight"),
    ("towline_group_leases", "gauge", "Pulls that are not settled.", "leases"),
    ("towline_group_retrying_messages", "gauge", "Messages that failed and will be tried again.", "retrying"),
    ("towline_group_retry_load_ratio", "gauge", "How full the retry queue is; at 1 nothing new comes.", "retry_load"),
    ("towline_group_dead_letters", "gauge", "Dead letters that were not sent again.", "dead"),
    ("towline_group_consumers", "gauge", "Consumers that are attached.", "members"),
)
UNREADABLE: Final = "towline_group_unreadable"
STEP: Final = "towline_background_step_seconds"
AGE: Final = "towline_group_oldest_age_seconds"


async def exposition(broker: Broker, may: May | None = None) -> bytes:
    """All metrics, of topics and groups those that `may` allows to describe. Counters are read at once; others run in
    between."""
    measured = await broker.measure(Measure())
    if may is not None:
        measured = figures_seen(measured, may)
    blocks: list[bytes] = []
    lines: list[str] = []
    part = TimeSlice()
    for line in _lines(broker, measured):
        lines.append(line)
        if part.over:
            blocks.append("".join(lines).encode())
            lines.clear()
            await part.rest()
    blocks.append("".join(lines).encode())
    return b"".join(blocks)


def _lines(broker: Broker, measured: Measured) -> Iterator[str]:
    figures = measured.broker
    yield _head("towline_info", "gauge", "What broker this is.")
    labels = (("name", figures["name"]), ("store", figures["store"]), ("durability", figures["durability"]))
    yield f"towline_info{_labels(labels)} 1\n"
    for name, kind, text, field in BROKER:
        if field in figures:
            yield _head(name, kind, text)
            yield f"{name} {_number(figures[field])}\n"
    yield from _process()
    yield from _store(broker)
    yield from _histogram("towline_commit_seconds", "From a send to when it is durable.", broker.commit_times)
    yield from _histogram("towline_loop_lag_seconds", "How late a timer of the event loop was.", broker.lag.lags)
    yield _head(STEP, "gauge", "Processor time of the longest step of the broker's own work of late.")
    for work, longest_s in broker.lag.longest().items():
        yield f"{STEP}{_labels([('work', work)])} {longest_s:.6f}\n"
    topics: list[tuple[str, TopicFigures]] = []
    for topic in measured.topics:
        topics.append((f'{{topic="{topic.topic}"}}', topic))
        yield ""
    for name, kind, text, field in TOPIC:
        yield _head(name, kind, text)
        yield from _samples(name, topics, field)
    groups: list[tuple[str, GroupFigures]] = []
    for group in measured.groups:
        groups.append((f'{{topic="{group.topic}",group="{group.group}"}}', group))
        yield ""
    for name, kind, text, field in GROUP:
        yield _head(name, kind, text)
        yield from _samples(name, groups, field)
    yield _head(UNREADABLE, "gauge", "1 while the group waits because the store cannot be read.")
    for labels_text, one in groups:
        yield f"{UNREADABLE}{labels_text} {int(bool(one.unreadable))}\n"
    yield _head(AGE, "gauge", "Age of the oldest message that is not consumed; 0 without a backlog.")
    for labels_text, one in groups:
        age_s = max(measured.at_us - one.oldest_at_us, 0) / 1e6 if one.oldest_at_us else 0
        yield f"{AGE}{labels_text} {age_s:g}\n"


def _samples(name: str, some: Iterable[tuple[str, TopicFigures | GroupFigures]], field: str) -> Iterator[str]:
    for labels, one in some:
        yield f"{name}{labels} {getattr(one, field)}\n"


def _process() -> Iterator[str]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield _head("process_cpu_seconds_total", "counter", "Processor time of the broker.")
    yield f"process_cpu_seconds_total {usage.ru_utime + usage.ru_stime:.3f}\n"
    memory = _resident_bytes()
    if memory:
        yield _head("process_resident_memory_bytes", "gauge", "Memory of the broker.")
        yield f"process_resident_memory_bytes {memory}\n"


def _resident_bytes() -> int:
    if not sys.platform.startswith("linux"):
        return 0
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - two system calls, no object for them
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _store(broker: Broker) -> Iterator[str]:
    stats = getattr(broker.store, "stats", None)
    for name, kind, text, field in (
        ("towline_store_written_bytes_total", "counter", "Bytes written to the log.", "bytes_written"),
        ("towline_store_commits_total", "counter", "Groups of appends that were written together.", "groups"),
        ("towline_store_slow_reads_total", "counter", "Reads that waited for the disk.", "slow_reads"),
        ("towline_store_lost_ranges_total", "counter", "Damaged ranges that readers came across.", "lost_ranges"),
    ):
        value = getattr(stats, field, None)
        if value is not None:
            yield _head(name, kind, text)
            yield f"{name} {_number(value)}\n"
    times = getattr(stats, "fsync_times", None)
    if isinstance(times, Histogram):
        yield from _histogram("towline_fsync_seconds", "How long syncing the disk took.", times)
    free = getattr(broker.store, "free_bytes", None)
    if callable(free):
        yield _head("towline_store_free_bytes", "gauge", "Room on the disk under the store.")
        yield f"towline_store_free_bytes {free()}\n"


def _histogram(name: str, text: str, histogram: Histogram) -> Iterator[str]:
    yield _head(name, "histogram", text)
    counts = list(histogram.counts)
    sums = list(accumulate(counts))
    for bound, count in zip(BOUNDS_S, sums, strict=False):
        yield f'{name}_bucket{{le="{bound:g}"}} {count}\n'
    yield f'{name}_bucket{{le="+Inf"}} {sums[-1]}\n{name}_sum {histogram.total_s:g}\n{name}_count {sums[-1]}\n'


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _labels(pairs: Iterable[tuple[str, object]]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{float(value):.10g}"
