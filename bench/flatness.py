"""Cost that does not grow: with the backlog, with the number of topics, and at a restart."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Figure, middle, spread
from bench.stage import Stage
from towline.load.broker import BrokerProcess
from towline.load.job import Job

__all__ = ["backlog", "topics"]

FEW = 100_000
PULL = 4_000
ROUNDS = 15
"""Each takes a twentieth of a second, so a single one says little."""
TOPICS = 1_000


def backlog(stage: Stage) -> Iterator[Figure]:
    """Millions of messages waiting: pull speed, memory and restart."""
    many = stage.backlog
    with stage.broker(durability="os") as broker:
        stage.fill(broker, "few", FEW)
        stage.fill(broker, "many", many)
        pairs = []
        for repeat in range(max(ROUNDS, stage.repeats)):
            # One after the other and in turns, so that both meet the same weather.
            order = ("few", "many") if repeat % 2 else ("many", "few")
            speed = {topic: _pull(stage, broker, topic, repeat) for topic in order}
            pairs.append((speed["few"], speed["many"]))
        memory = broker.peak_bytes / 1e6
        stop_s = broker.stop()
        graceful_s = broker.start()
        broker.kill()
        killed_s = broker.start()
        restarted = broker.peak_bytes / 1e6
    millions = f"{many / 1e6:g} M"
    shares = [with_many / with_few for with_few, with_many in pairs]
    yield Figure(
        scenario="backlog",
        name=f"pull with {millions} waiting ÷ with {FEW:,}",
        value=middle(shares),
        unit="×",
        target=0.9,
        note=f"{_middles(pairs)} msg/s{spread(shares)}",
    )
    yield Figure(
        scenario="backlog",
        name=f"broker memory with {millions} waiting",
        value=memory,
        unit="MB",
        target=256,
        less_is_better=True,
        note=f"VmHWM, after sends and pulls; {restarted:,.0f} MB after the restart",
    )
    for name, value in (("restart after SIGTERM", graceful_s), ("restart after kill -9", killed_s)):
        yield Figure(
            scenario="backlog",
            name=f"{name}, {millions} messages",
            value=value,
            unit="s",
            target=3.0,
            less_is_better=True,
            note="from start of the process to listening"
            + (f"; it stopped in {stop_s:.2f} s" if "TERM" in name else ""),
        )


def _pull(stage: Stage, broker: BrokerProcess, topic: str, repeat: int) -> float:
    group = f"group-{repeat}"
    count = min(FEW, stage.backlog)
    job = Job(role="consume", topics=(topic,), count=count, batch=PULL, group=group)
    return stage.run(broker, job)[0].rate


def topics(stage: Stage) -> Iterator[Figure]:
    """Frames of the same size, all for one topic or each for the next of a thousand."""
    many = tuple(f"topic-{number:04}" for number in range(TOPICS))
    batch = 100
    pairs = []
    with stage.broker(durability="os") as broker:
        # Every topic exists before the clock runs.
        stage.run(broker, Job(role="frames", topics=(*many, "one"), count=TOPICS + 1, batch=1, durability="os"))
        for repeat in range(max(3, stage.repeats)):
            rates = {}
            for names in (many, ("one",)) if repeat % 2 else (("one",), many):
                job = Job(
                    role="frames",
                    topics=names,
                    seconds=stage.seconds / 2,
                    batch=batch,
                    durability="os",
                )
                rates[len(names)] = stage.run(broker, job)[0].rate
            pairs.append((rates[1], rates[TOPICS]))
    shares = [with_many / with_one for with_one, with_many in pairs]
    yield Figure(
        scenario="topics",
        name=f"{TOPICS:,} topics round-robin ÷ one topic",
        value=middle(shares),
        unit="×",
        target=0.8,
        note=f"{_middles(pairs)} msg/s, frames of {batch} × 100 B, os{spread(shares)}",
    )


def _middles(pairs: list[tuple[float, float]]) -> str:
    """The medians behind a share: with many ÷ with few."""
    few, many = (middle([pair[side] for pair in pairs]) for side in (0, 1))
    return f"{many:,.0f} ÷ {few:,.0f}"
