"""What a number of the format covers is fixed, and what is not understood refuses the start."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.broker.conftest import ACK, Bench
from tests.unit.formats.listing import listing, path_of
from towline.broker.access.account_store import AccountStore
from towline.broker.broker import Broker
from towline.broker.open_store import open_store
from towline.clock import SYSTEM
from towline.delivery.group import events
from towline.delivery.group.events import decode_event, encode_event
from towline.delivery.schedule import events as schedule_events
from towline.errors import NewerFormat, StoreFailed, StoreLocked
from towline.format import FORMAT, NOTE, RELEASED
from towline.frame import encode_events
from towline.model import Durability
from towline.protocol import access
from towline.settings import BrokerSettings
from towline.store import Append
from towline.store.log.format import record
from towline.store.memory import MemoryStore

WHAT_TO_DO = (
    "what a broker stores is not what format {number} covers. If that was released (RELEASED in towline/format.py), "
    "raise FORMAT there; then run `python -m tests.unit.formats.listing`. Versions before refuse such a store, so that "
    "none of them goes on with half of what it says.\n{difference}"
)


def _compared(now: str) -> str:
    """What is to be done, if what is stored is not what the number covers; empty if it is."""
    frozen = path_of(FORMAT).read_text(encoding="utf-8")
    difference = "\n".join(
        line for line in difflib.unified_diff(frozen.splitlines(), now.splitlines(), "frozen", "now", n=0, lineterm="")
    )
    return difference and WHAT_TO_DO.format(number=FORMAT, difference=difference)


def test_nothing_is_stored_that_the_number_of_the_format_does_not_cover() -> None:
    assert not (said := _compared(listing())), said


def test_every_number_has_its_listing_and_all_before_the_last_are_released() -> None:
    assert all(path_of(number).exists() for number in range(1, FORMAT + 1))
    assert {*range(1, FORMAT)} <= {*RELEASED}


def test_a_new_event_field_frame_flag_and_word_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Borrowed(events._Event, frozen=True, array_like=True, tag=15):
        parts: tuple[events.Part, ...]

    Borrowed.__module__ = events.__name__
    Borrowed.__annotations__["parts"] = tuple[events.Part, ...]
    with monkeypatch.context() as patch:
        patch.setattr(events, "Borrowed", Borrowed, raising=False)
        assert "Borrowed [array 15]" in _compared(listing())
    with monkeypatch.context() as patch:
        patch.setattr("towline.frame.layout.UNKNOWN_FLAGS", 0xF800)
        assert "frame flags known: 0x7ff" in _compared(listing())
    with monkeypatch.context() as patch:
        patch.setattr("towline.protocol.access.ACTIONS", ("publish", *access.ACTIONS))
        assert "+words of action: admin alter consume create delete describe publish send" in _compared(listing())
    assert not _compared(listing())


@pytest.mark.parametrize("extra", [[99, 1], [3, 1, 2, [], "more"]], ids=["kind", "field"])
def test_an_event_or_a_field_that_is_unknown_does_not_decode(extra: list[object]) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_event(msgspec.msgpack.encode(extra))
    with pytest.raises(msgspec.MsgspecError):
        schedule_events.decode_schedule_event(msgspec.msgpack.encode([4, "orders", 7, "more"]))


# Starts


def _settings(path: Path) -> BrokerSettings:
    return BrokerSettings(store=f"file:{path}", segment_bytes=1 << 20)


async def _fill(path: Path) -> None:
    store = await open_store(_settings(path))
    broker = await Broker.open(store, _settings(path))
    bench = Bench(broker, store)
    member = await bench.attach()
    await bench.send("orders", b"one", b"two", b"three")
    await bench.act(member, ACK, await bench.pull(member, 1))
    await broker.close()


async def _append(path: Path, stream: str, *records: bytes) -> None:
    store = await open_store(_settings(path))
    await store.append([Append(stream, encode_events(list(records)), len(records))], Durability.FSYNC).done
    await store.close()


async def _start(path: Path) -> None:
    store = await open_store(_settings(path))
    await (await Broker.open(store, _settings(path))).close()


@pytest.mark.parametrize(
    "stream",
    [
        "pull/orders/billing",
        "delay/marks",
        "delay/1/5",
        "tx/marks",
        "tx/prepared",
        "stage/marks",
        "stage/frames",
        "catalog/topics",
        "catalog/groups",
    ],
)
async def test_a_record_of_a_later_version_refuses_the_start_and_says_which_version_reads_it(
    tmp_path: Path, stream: str
) -> None:
    await _fill(tmp_path)
    (tmp_path / "config" / NOTE).write_bytes(msgspec.json.encode({"format": 2, "towline": "9.8.7"}))
    await _append(tmp_path, stream, msgspec.msgpack.encode([99, 1, "of tomorrow"]))
    for _ in range(2):
        with pytest.raises(NewerFormat, match=rf"{stream}.* is not understood .*use Towline 9\.8\.7 or newer"):
            await _start(tmp_path)


async def test_a_field_of_a_later_version_refuses_the_start_as_well(tmp_path: Path) -> None:
    await _fill(tmp_path)
    event = msgspec.msgpack.decode(encode_event(events.Paused(1, "rest")))
    await _append(tmp_path, "pull/orders/billing", msgspec.msgpack.encode([*event, "more"]))
    with pytest.raises(NewerFormat, match="pull/orders/billing: event"):
        await _start(tmp_path)


UNKNOWN: dict[str, Callable[[Any], Any]] = {
    "topics.json": lambda it: it["topics"][0].update(start="yesterday"),
    "subscriptionGroup.json": lambda it: it["groups"][0].update(mode="perhaps-once"),
    "consumerOffset.json": lambda it: it["groups"][0].update(turns="many"),
    "delayOffset.json": lambda it: it.update(untilUs="noon"),
    "alarms.json": lambda it: it.update(rules=[{"name": "a", "what": "moonrise", "threshold": 1.0}]),
    "cluster.json": lambda it: it.update(id=7),
    "unused.json": lambda it: it.update(groups=7),
    "producers.bin": lambda it: it.append("more"),
    "staging.bin": lambda it: it.append("more"),
    "transactions.bin": lambda it: it.append("more"),
}

EMPTY = {"staging.bin": [0, 0, [], [], []], "transactions.bin": [0, 0, [], []]}


@pytest.mark.parametrize("name", UNKNOWN)
async def test_a_document_with_a_value_of_a_later_version_is_not_taken_for_damage(tmp_path: Path, name: str) -> None:
    """The one before it says less."""

    for _ in range(2):
        await _fill(tmp_path)
    coder: Any = msgspec.json if name.endswith(".json") else msgspec.msgpack
    path = tmp_path / "config" / name
    document = coder.decode(path.read_bytes()) if path.exists() else EMPTY.get(name, {})
    UNKNOWN[name](document)
    path.write_bytes(coder.encode(document))
    (tmp_path / "config" / NOTE).write_bytes(msgspec.json.encode({"format": 2, "towline": "9.8.7"}))
    with pytest.raises(NewerFormat, match=rf"{name} is not understood .*use Towline 9\.8\.7 or newer"):
        await _start(tmp_path)
    assert coder.decode(path.read_bytes()) == document


@pytest.mark.parametrize("change", [{"effect": "forbid"}, {"action": "publish"}, {"resource": "realm"}], ids=str)
async def test_a_right_of_a_later_version_is_not_passed_over(change: dict[str, str]) -> None:
    store = MemoryStore()
    rule = {"id": 1, "subject": "*", "effect": "deny", "action": "send", "resource": "topic", "name": "*"} | change
    document = msgspec.json.encode({"version": 1, "rules": [list(rule.values())]})

    await store.save("access.json", document)
    with pytest.raises(NewerFormat, match=r"access\.json is not understood"):
        await AccountStore(store, SYSTEM).load()


async def test_a_kind_of_record_of_a_later_version_is_not_taken_for_damage(tmp_path: Path) -> None:
    await _fill(tmp_path)
    for index in (tmp_path / "log").glob("*.idx"):
        index.unlink()
    segment = min((tmp_path / "log").glob("*.log"))
    data = segment.read_bytes()
    _, _, length, frame_length, name_length, _, *rest = record.STAMP.unpack_from(data)
    tail = record.stamp_tail(length, frame_length, name_length, record.FORGET + 1, *rest)
    name = data[record.STAMP.size : record.STAMP.size + name_length]
    stamp = record.seal_stamp(int(segment.stem), 0, tail, name)
    segment.write_bytes(stamp + data[len(stamp) :])
    with pytest.raises(NewerFormat, match=r"segment \d+: the record at byte \d+ .*kind 4"):
        await open_store(_settings(tmp_path))


async def test_a_folder_of_a_newer_format_names_the_version_that_can_read_it(tmp_path: Path) -> None:
    await _fill(tmp_path)
    (tmp_path / "format").write_text("towline log 99\n")
    (tmp_path / "config" / NOTE).write_bytes(msgspec.json.encode({"format": 99, "towline": "9.8.7"}))
    with pytest.raises(StoreFailed, match=r"has format 99, which Towline 9\.8\.7 has written; .*use Towline 9\.8\.7"):
        await open_store(_settings(tmp_path))


async def test_the_number_is_not_raised_while_another_broker_has_the_folder(tmp_path: Path) -> None:
    store = await open_store(_settings(tmp_path))
    (tmp_path / "format").write_text("towline log 1\n")
    with pytest.raises(StoreLocked):
        await open_store(_settings(tmp_path))
    assert (tmp_path / "format").read_text() == "towline log 1\n", "the older one must be able to come back"
    await store.close()


def test_a_folder_of_an_older_format_is_read_and_its_number_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await _fill(tmp_path)
        (tmp_path / "format").write_text("towline log 1\n")
        (tmp_path / "config" / NOTE).unlink()
        await _start(tmp_path)

    asyncio.run(main())
    assert (tmp_path / "format").read_text() == f"towline log {FORMAT}\n"
    assert f"is upgraded from format 1 to {FORMAT}" in caplog.text
    assert msgspec.json.decode((tmp_path / "config" / NOTE).read_bytes())["format"] == FORMAT
