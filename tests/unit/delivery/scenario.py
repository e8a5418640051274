"""Scenarios of delivery as plain text: commands to a group, and the events that follow.

A scenario is a text file. Lines that begin with `#` are prose. A command is followed by a line `----` and by what it is
expected to cause, up to the next empty line: an event a line, `nothing`, or `refused: ` and the error. A command
without `----` causes nothing. Pulls are numbered as they are granted.

    group attempts=3 delays=10s,30s         begins the scenario: settings of the group, all optional
    append middle 5                         five messages come into a lane (`high`, …, `shard 0`, `own high`)
    ann pulls 2                             with `at least N`, or `bytes N`
    ann acks 1                              all of pull 1; or `acks 1 middle 0..2`, or `acks up to 2`
    ann nacks 1                             with lanes as above, `because …`, `delay 5s`, `dead`
    ann gives back 1
    ann leaves                              in order; `ann vanishes` is a broken connection
    after 10s                               time passes, and what is overdue is taken away
    expire 1 middle 0..0                    the lifetime of messages of a pull is over
    unreadable 1 middle 0..0                the bytes of messages cannot be read
    bury middle 0..0 attempt 3 as 0         dying messages are copied to the dead letters, from that number on
    resend 0                                dead letters are sent again: copies come into the group's own lane
    trim middle 5                           retention drops what is before
    forfeit middle 5                        retention waits no longer for what is open before
    seek middle 0                           the group is moved; several lanes with commas
    pause, resume                           settings of the group
    restart                                 the pull log is replayed; `restart from a snapshot` takes one now
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.unit.delivery.driver import NOON, SECOND, Driver
from towline.delivery import Bury, Event, Expire, Forfeit, Move, Nack, Part, Pull, Resend, Skip
from towline.delivery.group.events import (
    Acked,
    Buried,
    Failed,
    GaveUp,
    Moved,
    Overrun,
    Pulled,
    Released,
    Resent,
    Returned,
    Skipped,
    Started,
)
from towline.errors import TowlineError
from towline.model import LANES, Span

__all__ = ["FOLDER", "Block", "Scenario", "blocks_of", "play", "written"]

FOLDER = Path(__file__).parent / "scenarios"

_SPAN = re.compile(r"(?P<lane>(?:own |shard )?\w+) (?P<first>\d+)\.\.(?P<last>\d+)")
_VERBS = {
    Pulled: "pulled",
    Acked: "acked",
    Failed: "failed",
    GaveUp: "gave up",
    Returned: "returned",
    Released: "released",
    Buried: "buried",
    Skipped: "skipped",
    Overrun: "overrun",
}


class Block(NamedTuple):
    """A line of a scenario: prose, or a command with what it is expected to cause."""

    line: str
    expected: tuple[str, ...] = ()

    @property
    def is_command(self) -> bool:
        return bool(self.line) and not self.line.startswith("#")


def blocks_of(text: str) -> list[Block]:
    lines, blocks, at = text.splitlines(), [], 0
    while at < len(lines):
        line, at = lines[at], at + 1
        expected: tuple[str, ...] = ()
        if lines[at : at + 1] == ["----"]:
            end = next((number for number in range(at, len(lines)) if not lines[number]), len(lines))
            expected, at = tuple(lines[at + 1 : end]), end
        blocks.append(Block(line, expected))
    return blocks


def written(blocks: list[Block]) -> str:
    """The text of a scenario."""
    lines: list[str] = []
    for block in blocks:
        lines += [block.line, "----", *block.expected] if block.expected else [block.line]
    return "\n".join(lines) + "\n"


def play(text: str) -> list[Block]:
    """The same scenario with what really follows each command."""
    scenario: Scenario | None = None
    played = []
    for block in blocks_of(text):
        happened: tuple[str, ...] = ()
        if block.is_command and scenario is None:
            scenario = Scenario(block.line)
        elif block.is_command and scenario is not None:
            happened = tuple(scenario.run(block.line))
            if happened == ("nothing",) and not block.expected:
                happened = ()
        played.append(Block(block.line, happened))
    return played


class Scenario:
    def __init__(self, first: str) -> None:
        word, *settings = first.split()
        assert word == "group", f"a scenario begins with `group`, not with {first!r}"
        self.mq = Driver(**dict(map(_setting, settings)))

    def run(self, command: str) -> Iterator[str]:
        try:
            events = self._events(command)
        except TowlineError as error:
            yield f"refused: {error.code}: {error}"
            return
        yield from map(self.describe, events)
        if not events:
            yield "nothing"

    def _events(self, command: str) -> list[Event]:
        words = command.split()
        if len(words) > 1 and words[1] in {"pulls", "acks", "nacks", "gives", "leaves", "vanishes"}:
            return self._of_consumer(words[0], words[1], " ".join(words[2:]))
        return self._of_broker(words[0], " ".join(words[1:]))

    def _of_consumer(self, consumer: str, verb: str, rest: str) -> list[Event]:
        mq, numbers = self.mq, [int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", rest)]
        spans = self._spans(rest.partition(" because ")[0])
        match verb:
            case "pulls":
                least = re.search(r"at least (\d+)", rest)
                size = re.search(r"bytes (\d+)", rest)
                count, max_bytes = numbers[0], int(size[1]) if size else 1 << 30
                events = mq.do(Pull(consumer, mq.pulls + 1, count, max_bytes, int(least[1]) if least else 1))
                mq.pulls += any(isinstance(event, Pulled) for event in events)
                return events
            case "acks":
                return mq.ack(*spans, pull=numbers[0], consumer=consumer, up_to=rest.startswith("up to"))
            case "nacks":
                options, _, reason = rest.partition(" because ")
                delay = re.search(r"delay (\S+)", options)
                delay_s = _seconds(delay[1]) if delay else None
                dead = options.endswith(" dead")
                return mq.do(Nack(consumer, numbers[0], spans, reason, delay_s, dead))
            case "gives":
                return mq.give_back(*spans, pull=numbers[0], consumer=consumer)
            case "leaves":
                return mq.leave(consumer)
        return mq.vanish(consumer)

    def _of_broker(self, verb: str, rest: str) -> list[Event]:  # one for each command
        mq, spans = self.mq, self._spans(rest)
        match verb:
            case "append":
                lane, _, count = rest.rpartition(" ")
                mq.append(self._lane(lane), int(count))
                return []
            case "trim":
                lane, _, first = rest.rpartition(" ")
                mq.trim(self._lane(lane), int(first))
                return []
            case "after":
                mq.pass_time(_seconds(rest))
                return mq.lapse()
            case "expire":
                return mq.do(Expire(int(rest.split(maxsplit=1)[0]), spans))
            case "unreadable":
                return mq.do(Skip(int(rest.split(maxsplit=1)[0]), spans, "unreadable"))
            case "bury":
                attempt, dead_first = map(int, re.findall(r"(?:attempt|as) (\d+)", rest))
                return mq.do(Bury(tuple(Part(*span, attempt) for span in spans), dead_first))
            case "resend":
                return mq.do(Resend(tuple(map(int, rest.split()))))
            case "forfeit":
                lane, _, before = rest.rpartition(" ")
                mq.pulls += 1
                return mq.do(Forfeit(((self._lane(lane), int(before)),), mq.pulls, "older than retention allows"))
            case "seek":
                places = [place.rpartition(" ") for place in rest.split(", ")]
                return mq.do(Move(tuple((self._lane(lane), int(to)) for lane, _, to in places)))
            case "pause" | "resume":
                mq.group.config = mq.config = msgspec.structs.replace(mq.config, paused=verb == "pause")
                return []
            case "restart":
                mq.restart(from_snapshot=len(mq.log) if rest else None)
                return []
        raise AssertionError(f"no such command: {verb} {rest}")

    # Lanes and spans

    def _lane(self, name: str) -> int:
        of, _, rest = name.rpartition(" ")
        if of == "shard":
            return int(rest)
        return LANES.index(rest) + (self.mq.group.topic_lanes if of == "own" else 0)

    def _spans(self, text: str) -> tuple[Span, ...]:
        return tuple(
            Span(self._lane(found["lane"]), int(found["first"]), int(found["last"]) - int(found["first"]) + 1)
            for found in _SPAN.finditer(text)
        )

    def _name(self, lane: int) -> str:
        group = self.mq.group
        if lane >= group.topic_lanes:
            return f"own {LANES[lane - group.topic_lanes]}"
        return f"shard {lane}" if self.mq.shards else LANES[lane]

    # Events

    def describe(self, event: Event) -> str:
        match event:
            case Started(positions=positions):
                return f"started at {positions}"
            case Moved(moves=moves):
                return "moved to " + ", ".join(f"{self._name(lane)} {to}" for lane, to in moves)
            case Resent(dead=dead):
                return "resent dead letters " + ", ".join(f"{first}..{first + count - 1}" for first, count in dead)
        assert type(event) in _VERBS, event
        words = [_VERBS[type(event)]]
        if getattr(event, "pull", 0):
            words.append(str(getattr(event, "pull")))  # noqa: B009  # not all events have one
        if isinstance(event, Pulled):
            words.append(f"by {event.consumer}")
        text = " ".join(words) + ": " + ", ".join(map(self._part, getattr(event, "parts", ())))
        return text + "".join(f", {more}" for more in _more(event))

    def _part(self, part: Part) -> str:
        attempt = f" attempt {part.attempt}" if part.attempt > 1 else ""
        return f"{self._name(part.lane)} {part.first}..{part.end - 1}{attempt}"


def _more(event: Event) -> Iterator[str]:
    if isinstance(event, Pulled) and event.deadline_us:
        yield f"to be settled by {_time(event.deadline_us)}"
    if isinstance(event, Failed):
        yield f"due at {_time(event.due_us)}"
    if isinstance(event, Buried):
        yield f"dead letters from {event.dead_first} on"
    if reason := getattr(event, "reason", ""):
        yield f'"{reason}"'


def _time(at_us: int) -> str:
    """Since the scenario began."""
    return f"{(at_us - NOON) / SECOND:g}s"


def _seconds(text: str) -> float:
    assert text.endswith("s"), f"a time in seconds: {text!r}"
    return float(text[:-1])


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    match name:
        case "attempts":
            return "max_attempts", int(value)
        case "delays":
            return "delays_s", tuple(map(_seconds, value.split(",")))
        case "timeout":
            return "timeout_s", _seconds(value)
        case "shards" | "max_in_flight":
            return name, int(value)
        case "share":
            return name, tuple(map(int, value.split(","))) if value else ()
        case "mode":
            return name, value
        case "expired_to_dead":
            return name, value == "yes"
    raise AssertionError(f"no such setting: {text}")
