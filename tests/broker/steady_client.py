"""A well-behaved client that sends and pulls while others misbehave."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from tests.broker.raw_client import RawClient
from tests.inside.protocol import Act, Settle, Settled

DEADLINE_S = 60.0


class Bystander:
    """Sends, pulls and acks in a thread for as long as the `with` block lasts, and insists that all of it works."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._turned = threading.Condition()
        self._rounds = 0
        self.slowest_s = 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Bystander:
        self._thread.start()
        self.wait_for_rounds(1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.wait_for_rounds(3)
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert self._error is None, self._error

    def wait_for_rounds(self, count: int) -> None:
        """Wait until so many more rounds have gone well."""
        with self._turned:
            target = self._rounds + count
            done = self._turned.wait_for(lambda: self._error or self._rounds >= target, DEADLINE_S)
            assert done, f"only {self._rounds} rounds"
            assert self._error is None, self._error

    def _run(self) -> None:
        try:
            with RawClient.hello(self._port) as client:
                subscription = client.attach("bystander", "watch", "bystander")
                while not self._stop.is_set():
                    self._round(client, subscription)
        except BaseException as error:
            self._error = error
        finally:
            with self._turned:
                self._turned.notify_all()

    def _round(self, client: RawClient, subscription: int) -> None:
        began = time.monotonic()
        body = b"round %d" % self._rounds
        client.send("bystander", [body])
        pull, bodies = client.pull_with_id(subscription)
        assert bodies == [body], bodies
        assert client.call(Settle(subscription, [Act(0, pull)]), Settled).refused == []
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        with self._turned:
            self._rounds += 1
            self._turned.notify_all()
