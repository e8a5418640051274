"""The broker stopped at any record of a publication: after the restart each message is there once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.eventually import eventually_done
from tests.inside.broker import STAGED, Broker, Staging, open_store
from tests.inside.frame import encode
from tests.inside.ground import BrokerSettings
from tests.inside.protocol import AskSink, Browse, FrameHead, Publish, Stage
from tests.inside.store import Appended
from towline.errors import TooLarge, Unavailable

RECORDS = 6


@pytest.mark.parametrize("stopped_after", range(RECORDS + 1))
def test_a_publication_goes_on_after_a_restart(
    tmp_path: Path, stopped_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BrokerSettings(store=f"file:{tmp_path}", durability="os")

    async def first() -> None:
        broker = await Broker.open(await open_store(settings), settings)
        staging, records = broker.staging, []
        for number in range(RECORDS):
            frame = encode([b"%d" % number])
            records.append((await staging.stage(Stage([FrameHead("orders", 1, len(frame))]), [frame])).record)
        read = Staging._read
        seen = 0

        async def stopping(self: Staging, record: int) -> object:
            nonlocal seen
            seen += 1
            if seen > stopped_after:
                raise Unavailable("stopped here")
            return await read(self, record)

        monkeypatch.setattr(Staging, "_read", stopping)
        if stopped_after < RECORDS:
            with pytest.raises(Unavailable):
                await staging.publish(Publish("sink", 1, records))
        else:
            await staging.publish(Publish("sink", 1, records))
        monkeypatch.undo()
        await broker.store.close()  # without a word to the broker: as if it had been killed

    async def second() -> None:
        broker = await Broker.open(await open_store(settings), settings)
        await eventually_done(lambda: not broker.staging._state.running)
        assert broker.staging.sink(AskSink("sink")).epoch == 1
        assert (await broker.staging.publish(Publish("sink", 1, []))).duplicate
        browsed, _ = await broker.browsing.browse(Browse("orders", 1))
        assert (browsed.first, browsed.end) == (0, RECORDS)
        await broker.close()

    asyncio.run(first())
    asyncio.run(second())


def test_what_a_store_refuses_late_is_not_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database may say so when it is asked to store it. A broker whose document spoke of it would not start again."""
    settings = BrokerSettings(store=f"file:{tmp_path}", durability="os")
    frame = encode([b"message"])
    request = Stage([FrameHead("orders", 1, len(frame))])

    async def first() -> None:
        broker = await Broker.open(await open_store(settings), settings)
        staging = broker.staging
        await staging.publish(Publish("sink", 1, [(await staging.stage(request, [frame])).record]))
        refused = asyncio.get_running_loop().create_future()
        refused.set_exception(TooLarge("the row is too large"))
        end = broker.store.bounds(STAGED).end
        with monkeypatch.context() as patched:
            patched.setattr(broker.store, "append", lambda *_: Appended((end,), 1, refused))
            with pytest.raises(TooLarge):
                await staging.stage(request, [frame])
        assert not staging._state.staged
        await broker.close()

    async def second() -> None:
        broker = await Broker.open(await open_store(settings), settings)
        assert broker.store.bounds(STAGED).first > 0, "what was published is let go of"
        record = (await broker.staging.stage(request, [frame])).record
        assert (await broker.staging.publish(Publish("sink", 2, [record]))).messages == 1
        await broker.close()

    asyncio.run(first())
    asyncio.run(second())
