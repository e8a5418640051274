"""Messages of an archive, sent again: filtered, in order, resumed, and never twice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import towline
from tests.broker.process import BrokerProcess
from tests.inside.spark import Archive, Chosen, Options, ReadSource, Source, Window, archive, replay
from tests.inside.spark import jobs_replay as module
from tests.spark.jobs.history import NOON, SECOND, Writer
from towline.errors import BadRequest, Conflict, NotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 12_000


@pytest.fixture(scope="module")
def shelf(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Messages of two lanes, one a millisecond, in several files."""
    folder = tmp_path_factory.mktemp("shelf")
    writer = Writer(folder / "data")
    for first in range(0, COUNT, 1_000):
        numbers = range(first, first + 1_000)
        lane = "high" if first % 3_000 == 0 else "middle"
        headers = [{"kind": "odd" if n % 2 else "even", "n": str(n)} if n % 3 else None for n in numbers]
        writer.send("orders", lane, [b"%d" % n for n in numbers], [f"key-{n % 100}" for n in numbers], headers)
        writer.clock.value_us += SECOND
    writer.write()
    archive(
        spark, Source.of(path=str(folder / "data")), str(folder / "archive"), Options(task_rows=2_500, compact_files=0)
    )
    return Archive.open(str(folder / "archive"))


def door(broker: BrokerProcess) -> ReadSource:
    return ReadSource(url=f"towline://127.0.0.1:{broker.port}")


def bodies(mq: towline.Client, topic: str, lane: Any = "middle") -> list[int]:
    found: list[int] = []
    while page := mq.browse(topic, lane, first=len(found), max_messages=5_000):
        found += [int(message.body) for message in page]
    return found


def of_lane(lane: str) -> list[int]:
    return [n for n in range(COUNT) if (n // 1_000 % 3 == 0) == (lane == "high")]


def test_all_of_it_in_order_with_keys_and_priorities(
    spark: SparkSession,
    shelf: Archive,
    broker: BrokerProcess,
    mq: towline.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Several chunks of a file, several of them in a task, and several rounds of tasks.
    monkeypatch.setattr(module, "CHUNK_ROWS", 700)
    monkeypatch.setattr(module, "RUN_CHUNKS", 3)
    done = replay(spark, shelf, door(broker), "all", str(tmp_path / "state"))
    assert (done.rows, done.done) == (COUNT, done.chunks)
    for lane in ("high", "middle"):
        assert bodies(mq, "orders", lane) == of_lane(lane)
    assert mq.browse("orders", "high", max_messages=1)[0].key is not None
    again = replay(spark, shelf, door(broker), "all", str(tmp_path / "state"))
    assert (again.rows, again.done) == (0, done.chunks)
    with pytest.raises(Conflict, match="another choice"):
        replay(spark, shelf, door(broker), "all", str(tmp_path / "state"), chosen=Chosen(key="key-1"))


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        (Chosen(key="key-7"), lambda n: n % 100 == 7),
        (Chosen(window=Window(NOON + 2 * SECOND, NOON + 4 * SECOND)), lambda n: 2_000 <= n < 4_000),
        (Chosen(where="cast(decode(body, 'utf-8') as int) % 5 = 0"), lambda n: n % 5 == 0),
        (Chosen(header=("kind", "odd")), lambda n: n % 3 and n % 2),
        (
            Chosen(key="key-7", header=("kind", "odd"), window=Window(NOON + SECOND, NOON + 9 * SECOND)),
            lambda n: n % 100 == 7 and n % 3 and n % 2 and 1_000 <= n < 9_000,
        ),
        (
            Chosen(key="key-8", header=("n", "4108"), where="headers['kind'] = 'even'", window=Window(NOON + SECOND)),
            lambda n: n == 4_108,
        ),
    ],
    ids=["key", "time", "sql", "header", "key-time-header", "all"],
)
def test_what_is_chosen_goes_to_another_topic(
    spark: SparkSession,
    shelf: Archive,
    broker: BrokerProcess,
    mq: towline.Client,
    tmp_path: Path,
    chosen: Chosen,
    wanted: Any,
) -> None:
    import msgspec

    chosen = msgspec.structs.replace(chosen, to_topic="again")
    replay(spark, shelf, door(broker), "some", str(tmp_path / "state"), chosen=chosen)
    found = [bodies(mq, "again", lane) for lane in ("high", "middle")]
    assert found == [[n for n in of_lane(lane) if wanted(n)] for lane in ("high", "middle")]


@pytest.mark.parametrize("staged", [False, True], ids=["direct", "staged"])
def test_a_replay_that_was_cut_short_sends_nothing_twice(
    spark: SparkSession, shelf: Archive, broker: BrokerProcess, mq: towline.Client, tmp_path: Path, staged: bool
) -> None:
    state = tmp_path / "state"
    replay(spark, shelf, door(broker), "cut", str(state), staged=staged, unordered=True)
    # As if it had been killed before it noted what was done; and then half of the way.
    for left in ("[]", "[0, 2]"):
        (state / "done.json").write_text(left)
        replay(spark, shelf, door(broker), "cut", str(state), staged=staged)
    for lane in ("high", "middle"):
        assert sorted(bodies(mq, "orders", lane)) == of_lane(lane)
    # Another one, which knows nothing of this, is not taken for it because it has the same name.
    other = Chosen(key="key-7", to_topic="others")
    replay(spark, shelf, door(broker), "cut", str(tmp_path / "elsewhere"), chosen=other, staged=staged)
    assert sorted(bodies(mq, "others") + bodies(mq, "others", "high")) == [n for n in range(COUNT) if n % 100 == 7]


def test_an_ordered_topic_gets_every_key_in_order(
    spark: SparkSession,
    shelf: Archive,
    broker: BrokerProcess,
    mq: towline.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mq.create_topic("sorted", shards=3)
    replay(spark, shelf, door(broker), "order", str(tmp_path / "state"), chosen=Chosen(to_topic="sorted", key="key-3"))
    found = [message for shard in range(3) for message in mq.browse("sorted", shard, max_messages=5_000)]
    assert sorted(int(message.body) for message in found) == [n for n in range(COUNT) if n % 100 == 3]
    assert len({message.lane for message in found}) == 1
    monkeypatch.setattr(module, "CHUNK_ROWS", 10)
    assert len(module._ranges(shelf.files("messages"))) == COUNT // 10


def test_the_rate_is_kept(
    spark: SparkSession, shelf: Archive, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    chosen = Chosen(window=Window(NOON + SECOND, NOON + 3 * SECOND), to_topic="slow")
    done = replay(spark, shelf, door(broker), "slow", str(tmp_path / "state"), chosen=chosen, rate=2_000)
    assert done.rows == 2_000
    assert done.seconds >= 0.9
    sent = mq.browse("slow", max_messages=5_000)
    assert [int(message.body) for message in sent] == list(range(1_000, 3_000))
    assert len({message.appended_at_us for message in sent}) > 2, "a tenth of a second's worth at a time"


def test_a_replay_goes_on_at_another_rate(
    spark: SparkSession, shelf: Archive, broker: BrokerProcess, mq: towline.Client, tmp_path: Path
) -> None:
    """Its frames stay the same, so that what was sent is recognised."""
    chosen = Chosen(window=Window(NOON + SECOND, NOON + 3 * SECOND), to_topic="again")
    state = tmp_path / "state"
    for rate in (5_000, 0, 20_000):
        replay(spark, shelf, door(broker), "rates", str(state), chosen=chosen, rate=rate)
        (state / "done.json").write_text("[]")
    assert bodies(mq, "again") == list(range(1_000, 3_000))


def test_mistakes_are_named(spark: SparkSession, shelf: Archive, broker: BrokerProcess, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="colour"):
        replay(spark, shelf, door(broker), "bad", str(tmp_path / "a"), chosen=Chosen(where="colour = 'red'"))
    with pytest.raises(NotFound, match="no messages of these topics"):
        replay(spark, shelf, door(broker), "none", str(tmp_path / "b"), chosen=Chosen(topics=["other"]))
