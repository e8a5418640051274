"""`towline log`: inspection of a log store's folder, without a broker or beside a running one."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from towline.cli.options import Usage
from towline.cli.output import Output, note, print_json, print_pairs, print_table, progress, size, stamp
from towline.cli.render import preview, text_or_base64
from towline.log_lines import harmless

if TYPE_CHECKING:
    from towline.store.log.offline.inspect import DamageFound, Report, SegmentStat, StoredFrame, StreamStat

__all__ = ["log"]

log = App(
    name="log",
    help="Look into the folder of a log store: nothing is changed, and a broker may be running on it meanwhile.",
)

Folder = Annotated[Path, Parameter(help="The folder, as given to the broker in `--store file:DIR`.")]


@log.command
def stat(folder: Folder, /, *, output: Output = "text") -> None:
    """Show the files and the streams of a log, and what they hold.

    A stream is a lane of a topic (`lane/TOPIC/LANE`), the delivery events of a group (`pull/TOPIC/GROUP`) or its dead
    letters (`dead/TOPIC/GROUP`).
    """
    from towline.store.log.offline import inspect

    found = inspect.stat(folder)
    if output == "json":
        print_json({"segments": list(map(_stat, found.segments)), "streams": list(map(_stat, found.streams))})
        return
    files = [
        (
            each.number,
            size(each.size_bytes),
            f"{each.frames:,}",
            "yes" if each.sealed else "no",
            stamp(each.first_at_us),
            stamp(each.last_at_us),
        )
        for each in found.segments
    ]
    print_table(("#SEGMENT", "#SIZE", "#FRAMES", "SEALED", "FROM", "TO"), files, empty="no segments")
    print(flush=True)
    streams = [
        (
            each.name,
            f"{each.first:,}",
            f"{each.end:,}",
            f"{each.frames:,}",
            size(each.frame_bytes),
            stamp(each.last_at_us),
        )
        for each in found.streams
    ]
    print_table(("STREAM", "#FIRST", "#END", "#FRAMES", "#SIZE", "LAST"), streams, empty="no streams")


def _stat(each: SegmentStat | StreamStat) -> dict[str, Any]:
    facts = msgspec.structs.asdict(each)
    times = {"first_at": stamp(facts.pop("first_at_us")), "last_at": stamp(facts.pop("last_at_us"))}
    return {name: str(fact) if isinstance(fact, Path) else fact for name, fact in facts.items()} | times


@log.command
def verify(folder: Folder, /, *, output: Output = "text") -> int:
    """Read every byte of a log and check it; the exit code is 1 if damage is found.

    A torn tail is no damage: a broker that was killed while it wrote leaves one, nothing in it was acknowledged, and
    the next start cuts it off.
    """
    from towline.store.log.offline import inspect

    with progress("verifying", None, "bytes") as step:
        report = inspect.verify(folder, step)
    if output == "json":
        print_json(_report(report))
    else:
        _print_report(report)
    return 0 if report.sound else 1


def _report(report: Report) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "records": report.records,
        "frames": report.frames,
        "messages": report.messages,
        "bytes_read": report.bytes_read,
        "damages": [_damage(each) for each in report.damages],
        "torn_tail": _damage(report.torn_tail) if report.torn_tail else None,
        "unindexed": [str(path) for path in report.unindexed],
    }


def _damage(damage: DamageFound) -> dict[str, Any]:
    return msgspec.structs.asdict(damage) | {"path": str(damage.path)}


def _print_report(report: Report) -> None:
    facts: list[tuple[str, object]] = [
        ("read", size(report.bytes_read)),
        ("frames", f"{report.frames:,}"),
        ("records", f"{report.messages:,}"),
    ]
    if report.torn_tail:
        facts.append(("torn tail", f"{report.torn_tail.length:,} bytes of {report.torn_tail.path}"))
    if report.unindexed:
        facts.append(("without index", f"{len(report.unindexed)} segments; made again at the next start"))
    facts.append(("damage", f"{len(report.damages)} places" if report.damages else "none"))
    print_pairs(facts)
    for damage in report.damages:
        print(harmless(f"{damage.path}: {damage.length:,} bytes at {damage.position:,}: {damage.reason}"))


@log.command
def dump(
    folder: Folder,
    /,
    *,
    stream: Annotated[
        str | None, Parameter(name=("--stream", "-s"), help="Only this stream, for example `lane/orders/middle`.")
    ] = None,
    first: Annotated[int, Parameter(name="--from", help="Begin with this record of each stream.")] = 0,
    limit: Annotated[int | None, Parameter(name=("--limit", "-n"), help="At most so many lines.")] = None,
    records: Annotated[
        bool,
        Parameter(
            name=("--records", "-r"),
            negative=(),
            show_default=False,
            help="Every record, not only the frames that hold them.",
        ),
    ] = False,
    output: Output = "text",
) -> None:
    """List the frames of a log in the order in which they were appended, or the records in them.

    A record is a message or, in a pull log, a delivery event. What is damaged is passed over; `verify` names it.
    """
    from towline.store.log.offline import inspect

    if limit is not None and limit < 1:
        raise Usage("--limit is at least 1")
    frames = inspect.dump(folder, stream, first, None if records else limit)
    lines = islice(_records(frames, first), limit) if records else map(_frame, frames)
    for facts in lines:
        if output == "json":
            print_json(facts, flush=False)
        elif records:
            print(
                facts["appended_at"], harmless(f"{facts['stream']}/{facts['seq']}"), harmless(_short(facts)), sep="  "
            )
        else:
            print(
                facts["appended_at"],
                harmless(f"{facts['stream']}/{facts['first']}"),
                f"{facts['count']:,} records",
                size(facts["length"]),
                f"segment {facts['segment']} at {facts['position']}",
                sep="  ",
            )
    sys.stdout.flush()


def _frame(stored: StoredFrame) -> dict[str, Any]:
    return {
        "stream": stored.stream,
        "first": stored.first,
        "count": stored.count,
        "appended_at": stamp(stored.appended_at_us),
        "source": _address(stored.source),
        "length": len(stored.frame),
        "segment": stored.segment,
        "position": stored.position,
    }


def _address(source: bytes) -> str:
    return str(ipaddress.ip_address(source)) if len(source) in (4, 16) else ""


def _records(frames: Iterator[StoredFrame], first: int) -> Iterator[dict[str, Any]]:
    from towline.errors import BadFrame
    from towline.frame import Frame
    from towline.frame.layout import EVENTS

    for stored in frames:
        try:
            frame = Frame(stored.frame)
            bodies, keys, headers = frame.bodies(), frame.keys(), frame.headers()
        except BadFrame as error:
            note(f"{stored.stream}/{stored.first}: {error}")
            continue
        for at, body in enumerate(bodies):
            if stored.first + at < first:
                continue
            facts: dict[str, Any] = {
                "stream": stored.stream,
                "seq": stored.first + at,
                "appended_at": stamp(stored.appended_at_us),
            }
            if frame.flags & EVENTS:
                yield facts | {"event": _event(body)}
                continue
            text, encoding = text_or_base64(body)
            yield facts | {
                "key": keys[at] if keys else None,
                "headers": headers[at] if headers else {},
                "encoding": encoding,
                "body": text,
            }


def _event(packed: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(packed)
    except msgspec.DecodeError:
        return packed.hex()


def _short(facts: dict[str, Any]) -> str:
    if "event" in facts:
        return str(facts["event"])
    key = f"[{facts['key']}] " if facts["key"] else ""
    return key + preview(facts["body"].encode(), 80)
