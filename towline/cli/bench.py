"""`towline bench`: load against a running broker, from processes of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from towline.cli.options import Connection, Usage
from towline.cli.output import Output, figure, many, note, print_json, print_pairs, progress

if TYPE_CHECKING:
    from towline.load.job import Job, Tally

__all__ = ["bench"]

bench = App(
    name="bench",
    help="Measure a running broker: rates and latencies, from processes of their own on this machine.\n\n"
    "Each run makes a topic of its own and removes it afterwards, unless --topic names one.",
)

Count = Annotated[int, Parameter(name=("--count", "-c"), help="Messages in all.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Load:
    """What the messages are like."""

    topic: Annotated[str | None, Parameter(help="Use this topic, and leave it and its messages there.")] = None
    size: Annotated[int, Parameter(help="Bytes of each body.")] = 100
    durability: Annotated[
        Literal["fsync", "os", "received"] | None,
        Parameter(help="What an acknowledged message must survive. Without it, the broker decides."),
    ] = None

    def job(self, connection: Connection, role: Any, topic: str, **more: Any) -> Job:
        from towline.load.job import Job

        return Job(
            role=role,
            url=connection.url,
            token=connection.token,
            secret=connection.secret(),
            ca_file=None if connection.ca_file is None else str(connection.ca_file),
            topics=(topic,),
            size=self.size,
            durability=self.durability,
            **more,
        )


@bench.command
def produce(
    *,
    count: Count = 1_000_000,
    seconds: Annotated[float, Parameter(help="Stop after so long instead; 0 goes by --count.")] = 0.0,
    how: Annotated[
        Literal["frames", "producer", "single"],
        Parameter(
            help="frames: send_many of --batch messages, several calls under way at a time. producer: single sends "
            "through the batching producer. single: one confirmed send at a time."
        ),
    ] = "frames",
    batch: Annotated[int, Parameter(help="Messages a call (frames).")] = 1_000,
    in_flight: Annotated[int, Parameter(help="Calls under way at a time (frames).")] = 4,
    rate: Annotated[float, Parameter(help="Messages a second; 0 is as fast as it goes (frames).")] = 0.0,
    load: Load = Load(),  # noqa: B008
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Send as fast as it goes, or at a steady rate; the latency is that of a call, until it is confirmed."""
    _check(count, batch, load.size)
    with _topic(connection, load.topic) as topic:
        more = {"count": 0 if seconds else count, "seconds": seconds}
        job = load.job(connection, how, topic, batch=batch, in_flight=in_flight, rate=rate, **more)
        (sent,) = _run("sending", count if not seconds else None, job)
    _show("produce", output, sent, "call")


@bench.command
def consume(
    *,
    count: Count = 1_000_000,
    batch: Annotated[int, Parameter(help="Messages a pull.")] = 4_000,
    group: Annotated[str | None, Parameter(name=("--group", "-g"), help="Consume as this group.")] = None,
    load: Load = Load(),  # noqa: B008
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Consume a backlog as fast as it goes, with acknowledgements.

    The backlog is sent first, unless --topic names a topic that has one. The latency is the time from batch to batch.
    """
    _check(count, batch, load.size)
    with _topic(connection, load.topic) as topic:
        if load.topic is None:
            _run("filling", count, load.job(connection, "frames", topic, count=count))
        group = group or f"bench-{secrets.token_hex(4)}"
        (received,) = _run(
            "consuming", count, load.job(connection, "consume", topic, count=count, batch=batch, group=group)
        )
        _drop_group(connection, load.topic, group)
    if received.messages < count:
        note(f"there were only {many(received.messages, 'message')}")
    _show("consume", output, received, "pull")


@bench.command
def pubsub(
    *,
    count: Count = 1_000_000,
    batch: Annotated[int, Parameter(help="Messages a send and a pull.")] = 1_000,
    in_flight: Annotated[int, Parameter(help="Sends under way at a time.")] = 4,
    rate: Annotated[float, Parameter(help="Messages a second; 0 is as fast as it goes.")] = 0.0,
    load: Load = Load(),  # noqa: B008
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Send and consume at once; the rate is from the first send to the last acknowledged message."""
    _check(count, batch, load.size)
    with _topic(connection, load.topic) as topic:
        group = f"bench-{secrets.token_hex(4)}"
        sender = load.job(connection, "frames", topic, count=count, batch=batch, in_flight=in_flight, rate=rate)
        receiver = load.job(connection, "consume", topic, count=count, batch=4 * batch, group=group)
        sent, received = _run("end to end", count, sender, receiver)
        _drop_group(connection, load.topic, group)
    _show("pubsub", output, received, "pull", begin_ns=sent.begin_ns)


@bench.command
def latency(
    *,
    count: Annotated[
        int | None, Parameter(name=("--count", "-c"), help="Messages in all, instead of --seconds.")
    ] = None,
    seconds: Annotated[float, Parameter(help="How long.")] = 10.0,
    rate: Annotated[float, Parameter(help="Messages a second.")] = 1_000.0,
    load: Load = Load(),  # noqa: B008
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Send at a steady rate, and see how long each message takes from send to handler."""
    count = max(1, int(seconds * rate)) if count is None else count
    _check(count, 1, load.size)
    if rate <= 0:
        raise Usage("--rate is more than 0")
    with _topic(connection, load.topic) as topic:
        group = f"bench-{secrets.token_hex(4)}"
        sender = load.job(connection, "paced", topic, count=count, rate=rate)
        receiver = load.job(connection, "handle", topic, count=count, group=group)
        _, received = _run("on the way", count, sender, receiver, per_second=1.0)
        _drop_group(connection, load.topic, group)
    _show("latency", output, received, "send to handler")


def _check(count: int, batch: int, size: int) -> None:
    if count < 1 or batch < 1 or size < 0:
        raise Usage("--count and --batch are at least 1, --size at least 0")


@contextmanager
def _topic(connection: Connection, name: str | None) -> Iterator[str]:
    """The topic to use; one that was made for this run is removed at its end."""
    if name is not None:
        yield name
        return
    name = f"bench-{secrets.token_hex(4)}"
    with connection.connect() as client:
        client.create_topic(name)
        try:
            yield name
        finally:
            client.delete_topic(name)


def _drop_group(connection: Connection, topic: str | None, group: str) -> None:
    """A topic that stays shall not keep a group that nobody will use again."""
    if topic is not None:
        with connection.connect() as client:
            client.delete_group(topic, group)


def _run(title: str, total: int | None, *jobs: Job, per_second: float = 10.0) -> list[Tally]:
    """`per_second` is how often the progress is drawn: it takes a processor for a moment."""
    from towline.load.crew import run

    with progress(title, total, per_second=per_second) as step:
        return run(jobs, step)


def _show(name: str, output: str, tally: Tally, what: str, *, begin_ns: int | None = None) -> None:
    seconds = (tally.end_ns - (begin_ns or tally.begin_ns)) / 1e9
    rate, megabytes = tally.messages / seconds, tally.bytes / seconds / 1e6
    if output == "json":
        print_json(
            {
                "bench": name,
                "messages": tally.messages,
                "bytes": tally.bytes,
                "seconds": seconds,
                "messages_per_s": rate,
                "mb_per_s": megabytes,
                "latency_of": what,
                "latency_ms": tally.latency,
            }
        )
        return
    facts = [
        ("messages", f"{tally.messages:,}"),
        ("seconds", f"{seconds:.3f}"),
        ("rate", f"{figure(rate)} msg/s, {figure(megabytes)} MB/s"),
    ]
    if tally.latency is not None:
        times = tally.latency
        parts = (("p50", times.p50), ("p99", times.p99), ("p99.9", times.p999), ("max", times.max))
        facts.append((f"latency of a {what}" if what != "send to handler" else what, _times(parts)))
    print_pairs(facts)


def _times(parts: tuple[tuple[str, float], ...]) -> str:
    return "  ".join(f"{name} {value:.3g} ms" for name, value in parts)
