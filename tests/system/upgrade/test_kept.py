"""What was kept of the version before: a session of its client and its broker, byte for byte, and a folder."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import towline
from tests.broker.process import BrokerProcess
from tests.inside.ground import FORMAT
from tests.inside.protocol import PREFACE, PREFIX, Decoder, Envelope, Failed
from tests.system.upgrade import story
from tests.system.upgrade.before import SESSION, unpack_folder

CENTURY_S = 100 * 365 * 86400.0
DEADLINE_S = 60.0
_NEW_EACH_TIME = re.compile(r"[0-9a-f]{12,}|127\.0\.0\.1:\d+")


class Replay:
    """The client's connections, as they were, to a broker of today."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: dict[str, socket.socket] = {}
        self._decoders: dict[str, Decoder] = {}

    def say(self, number: str, data: bytes) -> None:
        if number not in self._sockets:
            self._sockets[number] = socket.create_connection(("127.0.0.1", self._port), timeout=DEADLINE_S)
            self._decoders[number] = Decoder(1 << 24)
        self._sockets[number].sendall(data)

    def hear(self, number: str, count: int) -> list[Envelope]:
        found: list[Envelope] = []
        while len(found) < count:
            data = self._sockets[number].recv(1 << 16)
            assert data, "the broker closed the connection"
            found += self._decoders[number].feed(data)
        return found

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()


class Recorded:
    """The broker's side of a connection, as it was: each request is answered as one of its kind was then."""

    def __init__(self, lines: list[str]) -> None:
        asked: dict[int, Envelope] = {}
        self.asked: list[Envelope] = []
        self.answers: dict[int, list[Envelope]] = {}
        """By the kind of their request, in order."""
        decoders = {">": Decoder(1 << 24), "<": Decoder(1 << 24)}
        for line in lines:
            _, who, data = line.split(" ")
            for one in decoders[who].feed(bytes.fromhex(data.removeprefix(PREFACE.hex()))):
                if who == ">":
                    asked[one.number] = one
                    self.asked.append(one)
                else:
                    self.answers.setdefault(asked[one.number].kind, []).append(one)

    def answer(self, request: Envelope) -> bytes:
        found = self.answers[request.kind]
        one = found.pop(0) if len(found) > 1 else found[0]
        length = 12 + len(one.head) + len(one.attachments)
        return PREFIX.pack(length, request.number, one.kind, len(one.head)) + bytes(one.head) + bytes(one.attachments)


class BrokerBefore:
    """Speaks as the broker did when it was recorded; its connections come in the order of then."""

    def __init__(self) -> None:
        lines = SESSION.read_text().splitlines()
        numbers = sorted({line.split(" ")[0] for line in lines}, key=int)
        self.recorded = [Recorded([line for line in lines if line.startswith(f"{number} ")]) for number in numbers]
        self.asked: list[list[Envelope]] = [[] for _ in numbers]
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        for recorded, asked in zip(self.recorded, self.asked, strict=True):
            client, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(client, recorded, asked), daemon=True).start()

    def _serve(self, client: socket.socket, recorded: Recorded, asked: list[Envelope]) -> None:
        decoder = Decoder(1 << 24)
        with client:
            assert client.recv(len(PREFACE), socket.MSG_WAITALL) == PREFACE
            while data := client.recv(1 << 16):
                for request in decoder.feed(data):
                    asked.append(request)
                    client.sendall(recorded.answer(request))

    def close(self) -> None:
        self._socket.close()


def _facts(value: Any) -> Any:
    """What must be the same each time: without times, ids, addresses and what was measured."""
    if isinstance(value, dict):
        return {key: _facts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_facts(one) for one in value]
    if isinstance(value, float) or (isinstance(value, int) and 1 << 48 < value < 1 << 52):
        return type(value)
    return _NEW_EACH_TIME.sub("*", value) if isinstance(value, str) else value


def _head(envelope: Envelope) -> Any:
    head = msgspec.msgpack.decode(envelope.head)
    return head[:1] if envelope.kind == Failed.kind else _facts(head)


def test_a_client_of_the_version_before_is_answered_as_it_was_then(tmp_path: Path) -> None:
    with BrokerProcess(store=f"file:{tmp_path / 'data'}", name="before", segment_bytes=1 << 20) as broker:
        replay = Replay(broker.port)
        for line in SESSION.read_text().splitlines():
            number, who, data = line.split(" ")
            if who == ">":
                replay.say(number, bytes.fromhex(data))
                continue
            then = Decoder(1 << 24).feed(bytes.fromhex(data))
            now = replay.hear(number, len(then))
            for one, other in zip(then, now, strict=True):
                assert (one.number, one.kind) == (other.number, other.kind)
                assert _head(one) == _head(other), one.kind
                assert bytes(one.attachments) == bytes(other.attachments)
        replay.close()


def test_a_client_of_today_asks_a_broker_of_the_version_before_what_that_knows_and_goes_by_its_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = BrokerBefore()
    story.main(f"towline://127.0.0.1:{broker.port}")
    broker.close()
    assert capsys.readouterr().out == "urgent,order 0,order 1,order 2,order 3,order 4,order 5,order 6\n"
    for recorded, asked in zip(broker.recorded, broker.asked, strict=True):
        assert list(dict.fromkeys(one.kind for one in asked)) == list(dict.fromkeys(one.kind for one in recorded.asked))
        sizes = {one.kind: len(msgspec.msgpack.decode(one.head)) for one in recorded.asked}
        for one in asked[1:]:
            assert len(msgspec.msgpack.decode(one.head)) == sizes[one.kind], "fields that it does not know"


def test_a_folder_of_the_version_before_is_opened_and_all_of_it_is_there(tmp_path: Path) -> None:
    folder = unpack_folder(tmp_path)
    assert (folder / "format").read_text() == "towline log 1\n"
    settings: dict[str, Any] = {"store": f"file:{folder}", "retention_s": CENTURY_S, "segment_bytes": 1 << 20}
    for start in range(2):
        with BrokerProcess(**settings) as broker:
            if not start:
                broker.wait_for_log(f"is upgraded from format 1 to {FORMAT}")
            with towline.connect(f"towline://127.0.0.1:{broker.port}") as mq:
                (_look if start else _use)(mq)
            broker.stop()
            assert broker.wait() == 0, broker.errors
    assert (folder / "format").read_text() == f"towline log {FORMAT}\n"


def _use(mq: Any) -> None:
    """What the version before left: seven were in somebody's hands, who acked five, nacked one, and gave one up."""
    assert len(mq.browse("orders")) == 22
    assert len(mq.browse("orders", "high")) == 1
    assert mq.topic("ordered").config.shards == 2
    assert sum(len(mq.browse("ordered", lane)) for lane in range(2)) == 6
    [letter] = mq.dead_letters("orders", "billing")
    assert (bytes(letter.body), letter.reason) == (b"order 5", "hopeless")
    [late] = mq.delayed("orders")
    assert late.key == "late"
    state = mq.group("orders", "billing")
    assert (state.retrying, state.dead, state.config.retry.max_attempts) == (2, 1, 5), "nacked, and given back"
    [prepared] = mq.transactions()
    mq.resolve_transaction(prepared.transaction, "commit")
    with mq.consumer("orders", group="billing") as consumer:
        found: list[bytes] = []
        while batch := consumer.pull(wait=2):
            found += batch.bodies()
            batch.ack()
    assert sorted(found) == sorted([*(b"order %d" % number for number in range(6, 20)), b"once", b"both", b"prepared"])
    assert mq.send("orders", b"more").id == "orders/middle/23"


def _look(mq: Any) -> None:
    """After another start."""
    state = mq.group("orders", "billing")
    assert (state.lag, state.retrying, state.dead) == (2, 1, 1)
    assert not mq.transactions()
