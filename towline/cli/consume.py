"""`towline consume`: messages on stdout."""

from __future__ import annotations

import select
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from towline.cli.options import Connection, Usage
from towline.cli.output import note
from towline.cli.render import MessageFormat, renderer
from towline.cli.signals import Stop
from towline.cli.times import Duration, Start, parse_start
from towline.clock import SYSTEM
from towline.errors import NotFound, TowlineError
from towline.model import LANES, Priority, is_pattern

if TYPE_CHECKING:
    from towline.client._sync.client import Client
    from towline.client.consume.message import Message

__all__ = ["consume"]

Batches = Generator[list["Message"], None, None]

BATCH_MESSAGES = 1_000
WAIT_S = 0.5
"""How long one pull waits, and so how long at most a signal waits: the loop looks for it between two pulls."""
LOOK_S = 0.2
"""How often a peek that follows looks again."""


@Parameter(name="*")
@dataclass(frozen=True)
class Beginning:
    """The position to begin at, and whether to peek only."""

    from_: Annotated[
        str,
        Parameter(
            name="--from",
            help="Where to begin: earliest, latest, a time (`2026-05-01T12:00Z`), how long ago (`10m`), or a message "
            "number. For a group only earliest or latest, and only when it is new.",
        ),
    ] = "earliest"
    peek: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="Only look: nothing is consumed, and no group sees any difference."
        ),
    ] = False
    priority: Annotated[
        Priority | None, Parameter(name=("--priority", "-p"), help="With --peek, look at this lane only.")
    ] = None

    def start(self, topic: str, group: str | None) -> Start:
        start = _start(self.from_)
        if group is not None and (self.peek or not start.is_an_end):
            raise Usage(
                "a group goes on where it stands: --peek and --from TIME or NUMBER are for reading without a group"
            )
        looking = self.looks(start)
        if looking and is_pattern(topic):
            raise Usage(f"{topic}: --peek and --from TIME or NUMBER are for a single topic")
        if self.priority is not None and not looking:
            raise Usage("--priority is for --peek: a consumer takes all lanes, the high one first")
        return start

    def looks(self, start: Start) -> bool:
        """Whether messages are read without consuming them: so is every read that begins in the middle."""
        return self.peek or not start.is_an_end

    def lanes(self, client: Client, topic: str) -> Sequence[Priority | int]:
        if self.priority:
            return (self.priority,)
        shards = client.topic(topic).config.shards
        return range(shards) if shards else LANES


def consume(
    topic: Annotated[str, Parameter(help="The topic to consume, or all topics under a prefix: `'orders.*'`.")],
    /,
    *,
    group: Annotated[
        str | None,
        Parameter(
            name=("--group", "-g"),
            help="Share the work with the other consumers of this group, going on where it stands. Without a group, "
            "this consumer has its own progress, which is forgotten at the end.",
        ),
    ] = None,
    count: Annotated[int | None, Parameter(name=("--count", "-n"), help="Stop after so many messages.")] = None,
    beginning: Beginning = Beginning(),  # noqa: B008 it is frozen
    follow: Annotated[
        bool | None,
        Parameter(
            help="Wait for more messages when there are none left, or stop then. [default: wait, with --peek stop]"
        ),
    ] = None,
    idle_timeout: Annotated[
        Duration | None, Parameter(help="Stop when no message has come for so long (`30s`).")
    ] = None,
    output: Annotated[
        MessageFormat,
        Parameter(
            name=("--output", "-o"),
            help="text: the body and a newline. json: one object per line with everything known of the message. raw: "
            "the bodies back to back. hex: the body in hexadecimal and a newline.",
        ),
    ] = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Consume messages and print them.

    A message is acknowledged only after it was written and flushed to stdout: what is not written is delivered again.
    SIGINT, SIGTERM and a closed pipe end it after the batch at hand, and give back what was not written.

        towline consume orders -g billing -o json

        towline consume orders --peek --from 10m -n 20
    """
    start = beginning.start(topic, group)
    if count is not None and count < 1:
        raise Usage("--count is at least 1")
    if idle_timeout is None and not (not beginning.peek if follow is None else follow):
        idle_timeout = 0.0
    render = renderer(output)
    with connection.connect() as client, Stop() as stop:
        end = End(stop, count, idle_timeout, _Reader(sys.stdout.fileno()))
        if beginning.looks(start):
            batches = _look(client, topic, beginning.lanes(client, topic), start, end)
        else:
            batches = _pull(client, topic, group, start, end)
        # Closed before the client is: that gives back what was not written.
        with closing(batches):
            for messages in batches:
                sys.stdout.buffer.write(b"".join(map(render, messages)))
                sys.stdout.buffer.flush()
        return stop.exit_code


def _start(text: str) -> Start:
    try:
        return parse_start(text, SYSTEM.now_us())
    except ValueError as error:
        raise Usage(str(error)) from None


class _Reader:
    """The reader of our output."""

    def __init__(self, descriptor: int) -> None:
        self._poll = select.poll()
        self._poll.register(descriptor, 0)  # errors and hang-ups are told unasked

    @property
    def is_gone(self) -> bool:
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in self._poll.poll(0))


class End:
    """When to stop: after so many messages, when none has come for so long, when nobody reads them, or on a signal."""

    def __init__(self, stop: Stop, count: int | None, idle_timeout: float | None, reader: _Reader) -> None:
        self.stop = stop
        self._reader = reader
        self._left = count
        self._idle_timeout = idle_timeout
        self._idle_since = SYSTEM.steady_s()

    @property
    def reached(self) -> bool:
        return bool(self.stop) or self._left == 0 or self._reader.is_gone

    @property
    def most(self) -> int:
        """The number of messages to ask for."""
        return BATCH_MESSAGES if self._left is None else min(self._left, BATCH_MESSAGES)

    def took(self, count: int) -> None:
        self._idle_since = SYSTEM.steady_s()
        if self._left is not None:
            self._left -= count

    def patience_s(self, most_s: float) -> float:
        """How long to wait for the next message: 0 when it is time to stop, never more than `most_s`."""
        if self._idle_timeout is None:
            return most_s
        return max(0.0, min(most_s, self._idle_since + self._idle_timeout - SYSTEM.steady_s()))


def _pull(client: Client, topic: str, group: str | None, start: Start, end: End) -> Batches:
    """Batches of messages; one is acknowledged when the next is asked for."""
    first: Literal["earliest", "latest"] = "latest" if start.where == "latest" else "earliest"
    is_new = _is_new(client, topic)
    is_said = False
    with client.consumer(topic, group=group, start=first) as consumer:
        while not end.reached:
            wait_s = end.patience_s(WAIT_S)
            batch = consumer.pull(max_messages=end.most, wait=wait_s)
            if batch:
                is_said = True
                yield list(batch)
                batch.ack()
                end.took(len(batch))
            elif not wait_s or not end.patience_s(WAIT_S):
                return
            elif not is_said and not end.reached:
                is_said = True
                _say_it_waits(client, topic, group, is_new)


def _is_new(client: Client, topic: str) -> bool:
    if is_pattern(topic):
        return False
    try:
        client.topic(topic)
    except NotFound:
        return True
    return False


def _say_it_waits(client: Client, topic: str, group: str | None, is_new: bool) -> None:
    """Once, and only if no message came at first: the user may wonder whether the topic's name is right."""
    if is_new:
        note(f"topic {topic} is new")
    if group is not None and _is_paused(client, topic, group):
        note(f"group {group} is paused, and gets no messages until `towline group resume {topic} {group}`; Ctrl-C ends")
        return
    note(f"waiting for messages on topic {topic}{f' (group {group})' if group else ''}; Ctrl-C ends")


def _is_paused(client: Client, topic: str, group: str) -> bool:
    if is_pattern(topic):
        return False
    try:
        return client.group(topic, group).config.paused
    except TowlineError:
        return False


def _look(client: Client, topic: str, lanes: Sequence[Priority | int], start: Start, end: End) -> Batches:
    """Batches of messages, read without consuming them: the high lane first, then new ones in any of them."""
    at = {lane: _first(client, topic, lane, start) for lane in lanes}
    while not end.reached:
        found = False
        for lane in lanes:
            while not end.reached:
                page = client.browse(topic, lane, first=at[lane], max_messages=end.most)
                if page.next <= at[lane]:
                    break
                at[lane], found = page.next, True
                if page:
                    yield list(page)
                    end.took(len(page))
        if not found:
            wait_s = end.patience_s(LOOK_S)
            if not wait_s:
                return
            end.stop.wait(wait_s)


def _first(client: Client, topic: str, lane: Priority | int, start: Start) -> int:
    match start.where:
        case "earliest":
            return 0
        case "latest":
            return next(each.end for each in client.topic(topic).lanes if each.lane == str(lane))
        case "time":
            return client.locate(topic, lane, start.time_us / 1e6)
        case _:
            return start.seq
