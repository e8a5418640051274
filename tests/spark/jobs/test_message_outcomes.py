"""MessageOutcomes from ranges of events, against a truth that was kept message by message."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.inside.delivery import Event, Moved, Started, decode_event
from tests.inside.frame import Frame
from tests.inside.spark import KINDS, STATUSES, Events, MessageOutcomes, Moves, lives, override
from tests.spark.jobs.history import NOON, Group, Life, Writer, play


def events_of(writer: Writer) -> list[Event]:
    frames = [Frame(one.frame) for _, unit in writer.units for one in unit if one.stream.startswith("pull/")]
    return [decode_event(body) for frame in frames for body in frame.bodies()]


def columns(events: list[Event], words: dict[str, int]) -> tuple[Events, Moves]:
    rows: list[tuple[int, ...]] = []
    moved: list[tuple[int, int]] = []
    started, position = -1, 0
    for order, event in enumerate(events):
        if isinstance(event, Started):
            started = position = event.positions[1]
        elif isinstance(event, Moved):
            moved.append((order, event.moves[0][1]))
            position = event.moves[0][1]
        kind = type(event).__name__
        for part in getattr(event, "parts", ()):
            position = max(position, part.end) if kind in ("Pulled", "Overrun") else position
            consumer = words.setdefault(event.consumer, len(words)) if kind == "Pulled" else -1  # type: ignore[union-attr]
            why = getattr(event, "reason", "")
            reason = words.setdefault(why, len(words)) if why else -1
            rows.append((KINDS.index(kind), part.first, part.end, event.at_us, order, consumer, reason, part.attempt))
    table = np.array(rows, np.int64).reshape(-1, len(Events._fields))
    places = np.array(moved, np.int64).reshape(-1, 2)
    return Events(*table.T), Moves(started, position, places[:, 0], places[:, 1])


def told(found: MessageOutcomes, seq: int, words: list[str], sent_us: int) -> Life:
    at = int(found.at(np.array([seq]))[0])
    numbers = [int(column[at]) for column in found]
    _, _, status, pulls, failures, acks, first, last, settled, consumer, reason = numbers
    text = [words[number] if number >= 0 else None for number in (consumer, reason)]
    return Life(sent_us, STATUSES[status], pulls, failures, acks, first, last, settled, *text)


@pytest.mark.parametrize("seed", range(15))
def test_lives_are_what_happened_to_each_message(seed: int) -> None:
    chance = random.Random(seed)
    writer = Writer(Path("/nowhere"))
    group = Group(writer, "orders", "billing", chance, start=chance.choice((0, 0, 7)))
    play(writer, group, 120)
    words: dict[str, int] = {}
    events, moves = columns(events_of(writer), words)
    end = max(group.lives) + 1
    # The whole lane at once, and in stretches as tasks see it.
    cuts = sorted({0, end, *(chance.randint(0, end) for _ in range(3))})
    for bounds in ([0, end], cuts):
        for low, high in pairwise(bounds):
            found = lives(events, moves, low, high)
            for seq in range(low, high):
                if seq < group.start:
                    assert STATUSES[found.status[found.at(np.array([seq]))[0]]] == "BEFORE"
                else:
                    truth = group.lives[seq]
                    assert told(found, seq, list(words), truth.sent_us) == truth, seq


def test_a_lane_without_events_is_new_and_one_whose_events_were_dropped_is_unknown() -> None:
    none = np.empty(0, np.int64)
    nothing = Events(*[none] * len(Events._fields))
    assert lives(nothing, Moves(-1, 0, none, none), 0, 10).status.tolist() == [0]
    found = lives(nothing, Moves(-1, 4, none, none), 0, 10)
    assert [STATUSES[status] for status in found.status] == ["UNKNOWN", "NEW"]
    assert found.end.tolist() == [4, 10]


def test_a_dead_letter_that_was_sent_again_ends_as_its_copy_does() -> None:
    def piece(status: str, pulls: int, settled: int, consumer: int) -> MessageOutcomes:
        numbers = (0, 1, STATUSES.index(status), pulls, pulls, status == "SUCCESS", NOON, NOON, settled, consumer, -1)
        return MessageOutcomes(*(np.array([number], np.int64) for number in numbers))

    dead, copy = piece("DEAD", 3, NOON + 1, 0), piece("SUCCESS", 1, NOON + 9, 1)
    index = np.array([0])
    ended = override(dead, copy, index, np.array([0]))
    assert (STATUSES[ended.status[0]], ended.pulls[0], ended.settled_us[0], ended.consumer[0]) == (
        "SUCCESS",
        4,
        NOON + 9,
        1,
    )
    assert override(dead, copy, index, np.array([-1])).status[0] == dead.status[0]
    # A message that did not die keeps its own life, whatever a copy's header says.
    alive = piece("SUCCESS", 1, NOON + 1, 0)
    assert override(alive, copy, index, np.array([0])).settled_us[0] == NOON + 1


def test_kinds_and_statuses_are_those_of_the_delivery() -> None:
    from tests.inside.delivery import RULES, State

    assert set(KINDS) == {event.__name__ for event in RULES if event.__name__ != "Resent"}
    assert {state.status for state in State} <= set(STATUSES)
    assert msgspec.json.encode(STATUSES)
