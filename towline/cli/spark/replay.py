"""`towline spark replay`: messages back into a topic."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from towline.cli.options import Usage
from towline.cli.output import Output, note, print_json, print_pairs, progress
from towline.cli.spark.analysis import Since, Until
from towline.cli.spark.options import Engine, Origin, Topics, chosen_topics, parse_window
from towline.model import check_group

if TYPE_CHECKING:
    from towline.spark.jobs.replay import Replayed

__all__ = ["replay"]


@Parameter(name="*")
@dataclass(frozen=True)
class Selection:
    """Some of the messages."""

    since: Since = None
    until: Until = None
    key: Annotated[str, Parameter(help="Only messages with exactly this key.", show_default=False)] = ""
    header: Annotated[str, Parameter(help="Only messages with this header, NAME=VALUE.", show_default=False)] = ""
    where: Annotated[
        str,
        Parameter(
            help="Only messages for which this expression in Spark's SQL holds, over the archive's columns: "
            "\"size > 1000 and decode(body, 'utf-8') like '%error%'\".",
            show_default=False,
        ),
    ] = ""

    def header_pair(self) -> tuple[str, str] | None:
        name, equals, value = self.header.partition("=")
        if self.header and not (name and equals):
            raise Usage(f"--header {self.header!r} is not of the form NAME=VALUE")
        return (name, value) if self.header else None


@Parameter(name="*")
@dataclass(frozen=True)
class Course:
    """The pace and the state of a replay."""

    rate: Annotated[float, Parameter(help="At most so many messages a second; 0 is as fast as can be.")] = 0
    job: Annotated[
        str,
        Parameter(
            help="The name of this replay. One that was cut short goes on when it is started again under its name; one "
            "that is done does nothing. [default: a new one]",
            show_default=False,
        ),
    ] = ""
    state: Annotated[
        str | None, Parameter(help="Where the state of replays is kept. [default: _replay in the archive]")
    ] = None
    staged: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Make each chunk visible all at once, and known to the broker for ever: never twice, however late the "
            "replay goes on. Writes everything twice.",
        ),
    ] = False
    unordered: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Send the messages of one lane by all tasks at once: faster, but not in order.",
        ),
    ] = False

    def name(self) -> str:
        """The one given, or a new one."""
        return check_group(self.job or f"replay-{secrets.token_hex(4)}")

    def folder(self, archive: str, name: str) -> str:
        """The folder for the state of the replay of this name."""
        return f"{(self.state or archive.rstrip('/') + '/_replay').rstrip('/')}/{name}"


def replay(
    archive: Annotated[str, Parameter(help="The archive: a folder, or hdfs://…, s3://….")],
    /,
    *,
    topic: Topics = None,
    to_topic: Annotated[str, Parameter(help="The topic to send to. [default: the one each comes from]")] = "",
    selection: Selection = Selection(),  # noqa: B008 it is frozen
    course: Course = Course(),  # noqa: B008
    origin: Origin = Origin(),  # noqa: B008
    engine: Engine = Engine(),  # noqa: B008
    output: Output = "text",
) -> int:
    """Send messages of an archive again, to the same topics or to another.

    They are new messages: with their body, key, headers, priority and shard key; without their times and dedup ids. To
    replay what a broker still has, archive it first (`towline spark archive`).

        towline spark replay /backup/orders --topic orders --to-topic orders.again --from 2026-05-01T00:00Z --rate 5000
    """
    if origin.path is not None:
        raise Usage("--path: messages are sent to a broker: give its --url")
    name = course.name()
    header = selection.header_pair()
    window = parse_window(selection.since, selection.until)
    door = origin.source(None).door
    with engine.session("replay") as spark, progress("replaying", None) as step:
        from towline.spark.jobs.archive.manifest import Archive
        from towline.spark.jobs.replay import Chosen
        from towline.spark.jobs.replay import replay as run

        found = Archive.open(archive)
        chosen = Chosen(
            topics=chosen_topics(found, topic),
            window=window,
            key=selection.key,
            header=header,
            where=selection.where,
            to_topic=to_topic,
        )
        note(f"replay {name}: to go on should it be cut short, give --job {name}")

        def told(done: Replayed) -> None:
            step(done.rows)

        options: dict[str, Any] = {"rate": course.rate, "staged": course.staged, "unordered": course.unordered}
        folder = course.folder(archive, name)
        done = run(spark, found, door, name, folder, chosen=chosen, told=told, **options)
    if output == "json":
        print_json(msgspec.to_builtins(done))
    else:
        pace = done.rows / done.seconds if done.seconds else 0
        print_pairs(
            [
                ("replay", done.job),
                ("messages", f"{done.rows:,}"),
                ("chunks", f"{done.done:,} of {done.chunks:,}"),
                ("took", f"{done.seconds:.1f} s, {pace:,.0f} messages/s"),
            ]
        )
    return 0
