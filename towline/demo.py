"""Towline at work, in half a minute: `./dev demo`.

A shop sends orders to a broker; two groups consume them, `billing` with two consumers and `shipping` with one. On the
way a handler fails and its orders are tried again, one order dies and is brought back, a consumer is killed with
kill -9, and so is the broker itself. At the end every order was handled by both groups, or the exit code is not 0.

Broker and consumers are real processes. A consumer tells what it did on its stdout, one line of JSON an order.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

import msgspec

from towline.load.broker import BrokerProcess

if TYPE_CHECKING:
    from rich.console import Console

    from towline.client.blocking import Client

__all__ = ["main"]

TOPIC = "orders"
ORDERS = 1_500
PACE_S = 0.008
FLAKY = 100
"""Every so manyeth order fails until its third attempt."""
THIRD = 3
POISON = 777
"""This order fails at every attempt, until the handler is mended."""
RETRY_DELAYS_S = (0.2, 0.4)
MAX_ATTEMPTS = 5
PATIENCE_S = 60.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Told(msgspec.Struct, frozen=True):
    """What a consumer says about one order."""

    order: int
    attempt: int
    failed: bool


# --- a consumer, in a process of its own ------------------------------------------------------------------------------


class HandlerFailed(Exception):
    pass


def consume(url: str, group: str, name: str, mended: str, hangs_at: str) -> None:
    import towline

    with towline.connect(url) as mq, mq.consumer(TOPIC, group=group, name=name, max_messages=20) as consumer:
        for message in consumer:
            order = int(message.body)
            try:
                with message:
                    if int(hangs_at) and order >= int(hangs_at):
                        time.sleep(3600)
                    fails = _fails(order, message.attempt, Path(mended)) if group == "billing" else False
                    _tell(Told(order, message.attempt, fails))
                    if fails:
                        raise HandlerFailed(f"order {order}: the bank does not answer")
            except HandlerFailed:
                pass  # The message was nacked: it comes back, or it dies.


def _fails(order: int, attempt: int, mended: Path) -> bool:
    if order == POISON:
        return not mended.exists()
    return order % FLAKY == 0 and attempt < THIRD


def _tell(told: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


class Consumer:
    """The other end of a consumer process: keeps what it told."""

    def __init__(self, group: str, name: str, url: str, mended: Path, hangs_at: int) -> None:
        self.group, self.name = group, name
        self.told: list[tuple[float, Told]] = []
        command = [sys.executable, "-m", "towline.demo", "consume", url, group, name, str(mended), str(hangs_at)]
        # A process group of its own: Ctrl-C is for the demo, which then ends its consumers.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0)  # noqa: S603 our own module
        assert self.process.stdout is not None
        self._listener = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self._listener.start()

    def _listen(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                self.told.append((time.monotonic(), msgspec.json.decode(line, type=Told)))

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self._listener.join()

    @property
    def handled(self) -> list[int]:
        return [told.order for _, told in list(self.told) if not told.failed]


# --- the shop ---------------------------------------------------------------------------------------------------------


class Shop(threading.Thread):
    """Sends orders at a steady pace, each confirmed before the next, through whatever happens to the broker."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.sent = 0
        self.slowest_s = 0.0
        self.error: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def run(self) -> None:
        import towline

        try:
            with towline.connect(self._url, timeout=PATIENCE_S) as mq:
                for order in range(1, ORDERS + 1):
                    begin = time.monotonic()
                    mq.send(
                        TOPIC,
                        str(order).encode(),
                        key=f"order-{order}",
                        priority="high" if order % 10 == 0 else "middle",
                    )
                    self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
                    self.sent = order
                    time.sleep(PACE_S)
        except Exception as error:
            self.error.put(error)


# --- the story --------------------------------------------------------------------------------------------------------


class Story:
    def __init__(self, console: Console, folder: Path) -> None:
        self.console = console
        self.begin = time.monotonic()
        self.mended = folder / "mended"
        self.broker = BrokerProcess(f"file:{folder / 'data'}", log_level="warning")
        self.broker.process_group = 0
        self.consumers: list[Consumer] = []
        self.faults: list[str] = []

    def tell(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.begin:5.1f} s[/dim]  {text}", highlight=False)

    def expect(self, what: str, truth: bool) -> None:
        if not truth:
            self.faults.append(what)

    def until(self, what: str, happened: Callable[[], bool], shop: Shop | None = None) -> float:
        begin = time.monotonic()
        while not happened():
            if shop is not None and not shop.error.empty():
                raise SystemExit(f"the shop failed: {shop.error.get()}")
            if time.monotonic() - begin > PATIENCE_S:
                raise SystemExit(f"waited in vain until {what}")
            time.sleep(0.02)
        return time.monotonic() - begin

    def handled(self, group: str) -> Counter[int]:
        return Counter(order for each in self.consumers if each.group == group for order in each.handled)

    def hire(self, group: str, name: str, hangs_at: int = 0) -> Consumer:
        consumer = Consumer(group, name, self.broker.url, self.mended, hangs_at)
        self.consumers.append(consumer)
        return consumer

    def play(self) -> int:
        import towline
        from towline.model import GroupConfig, RetryPolicy

        took_s = self.broker.start()
        self.tell(f"a broker listens on {self.broker.url} after {took_s:.2f} s, with an empty log")
        with towline.connect(self.broker.url, timeout=PATIENCE_S) as mq:
            mq.create_topic(TOPIC)
            mq.put_group(GroupConfig(TOPIC, "billing", retry=RetryPolicy(MAX_ATTEMPTS, RETRY_DELAYS_S)))
            mq.put_group(GroupConfig(TOPIC, "shipping"))
            victim = self.hire("billing", "billing-1", hangs_at=ORDERS // 3)
            self.hire("billing", "billing-2")
            self.hire("shipping", "shipping-1")
            shop = Shop(self.broker.url)
            shop.start()
            self.tell(f"the shop sends {ORDERS:,} orders; billing has two consumers, shipping one")
            self.lose_a_consumer(mq, victim, shop)
            self.until("two thirds of the orders were sent", lambda: shop.sent >= 2 * ORDERS // 3, shop)
            self.lose_the_broker(shop)
            self.until("all orders were sent", lambda: shop.sent == ORDERS, shop)
            self.tell(f"all {ORDERS:,} orders were sent and confirmed; the slowest took {shop.slowest_s:.2f} s")
            self.bring_back_the_dead(mq)
            for group in ("billing", "shipping"):
                self.until(f"{group} has caught up", lambda group=group: mq.group(TOPIC, group).lag == 0)  # type: ignore[misc]
            self.report(mq)
        return 1 if self.faults else 0

    def lose_a_consumer(self, mq: Client, victim: Consumer, shop: Shop) -> None:
        def held() -> int:
            members = mq.group(TOPIC, "billing").members
            return sum(member.in_flight for member in members if member.consumer == victim.name)

        self.until("a third of the orders was sent", lambda: shop.sent >= ORDERS // 3, shop)
        self.until("the first consumer of billing hangs", lambda: held() > 0 and shop.sent >= ORDERS // 2.5, shop)
        count = held()
        victim.kill()
        self.tell(
            f"consumer {victim.name} hangs with {count} order{'s' * (count != 1)} in its hands: [red]kill -9[/red]"
        )
        waited_s = self.until("what it held was given to the other", lambda: held() == 0, shop)
        self.tell(f"its orders went to the other consumer of its group after {waited_s:.2f} s")
        self.expect("a crashed consumer's messages come back within 2 s", waited_s < 2)

    def lose_the_broker(self, shop: Shop) -> None:
        before = shop.sent
        self.broker.kill()
        self.tell(f"[red]kill -9[/red] the broker, after {before:,} confirmed orders")
        took_s = self.broker.start()
        self.tell(f"it is back after {took_s:.2f} s; shop and consumers go on by themselves")

    def bring_back_the_dead(self, mq: Client) -> None:
        self.until("the bad order died", lambda: mq.group(TOPIC, "billing").dead > 0)
        letters = list(mq.dead_letters(TOPIC, "billing"))
        for letter in letters:
            self.tell(
                f"order {letter.body.decode()} is [red]dead[/red] after {letter.attempt} attempts: {letter.reason!r}"
            )
        self.expect("exactly one order died", [int(letter.body) for letter in letters] == [POISON])
        self.mended.touch()
        mq.resend(TOPIC, "billing")
        self.tell("the handler is mended, and the dead letter is sent again")
        self.until("the dead order was handled", lambda: POISON in self.handled("billing"))

    def report(self, mq: Client) -> None:
        from rich import box
        from rich.table import Table

        table = Table(
            "group", "orders handled", "of them twice", "failed attempts", "still dead", "lag", box=box.SIMPLE_HEAD
        )
        for group in ("billing", "shipping"):
            handled, state = self.handled(group), mq.group(TOPIC, group)
            failed = sum(told.failed for each in self.consumers if each.group == group for _, told in each.told)
            twice = sum(count > 1 for count in handled.values())
            missing = ORDERS - len(handled)
            self.expect(f"{group} handled every order, but {missing} are missing", not missing)
            self.expect(f"{group} handled only orders that were sent", set(handled) <= set(range(1, ORDERS + 1)))
            self.expect(f"nothing of {group} is left, not {state.lag}", not state.lag)
            table.add_row(group, f"{len(handled):,}", str(twice), str(failed), str(state.dead), str(state.lag))
        early = [
            told for each in self.consumers for _, told in each.told if each.group == "billing" and not told.failed
        ]
        early = [told for told in early if told.order % FLAKY == 0 and told.attempt < THIRD]
        self.expect(f"a failed order is tried again, but {len(early)} were not", not early)
        self.console.print()
        self.console.print(table)
        self.draw()
        kept = sum(lane.end - lane.first for lane in mq.topic(TOPIC).lanes)
        self.expect(f"the topic holds {ORDERS} orders, not {kept}", kept == ORDERS)
        if self.faults:
            for fault in self.faults:
                self.console.print(f"[bold red]not true:[/bold red] {fault}")
        else:
            self.console.print(
                "[bold green]Nothing was lost.[/bold green] Twice means: handled, but killed before the ack."
            )

    def draw(self) -> None:
        """Orders handled a second, as bars: the two gaps are the two kills."""
        for group in ("billing", "shipping"):
            a_second: Counter[int] = Counter(
                int(at - self.begin)
                for each in self.consumers
                if each.group == group
                for at, told in each.told
                if not told.failed
            )
            most = max(a_second.values(), default=1)
            bars = "".join(" ▁▂▃▄▅▆▇█"[-(-8 * a_second[at] // most)] for at in range(max(a_second, default=0) + 1))
            self.console.print(f"  {group:<9} {bars}  up to {most} orders a second", highlight=False)
        self.console.print()

    def close(self) -> None:
        for consumer in self.consumers:
            if consumer.process.poll() is None:
                consumer.kill()
        if self.broker.running:
            self.broker.kill()


class ToldToStop(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _on_signal(number: int, frame: FrameType | None) -> None:
    # The first one ends the demo; those that follow must not keep it from tidying up.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise ToldToStop(number)


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["consume"]:
        consume(*arguments[1:])
        return 0
    if arguments:
        asked = arguments[0] in ("-h", "--help", "help")
        print(
            __doc__ if asked else f"error: the demo takes no arguments: {arguments[0]}",
            file=None if asked else sys.stderr,
        )
        return 0 if asked else 2
    try:
        for number in SIGNALS:
            signal.signal(number, _on_signal)
        return _play()
    except ToldToStop as told:
        return 128 + told.number
    except KeyboardInterrupt:
        return 130


def _play() -> int:
    from rich.console import Console

    # Who reads a pipe wants whole lines.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    with tempfile.TemporaryDirectory(prefix="towline-demo-", ignore_cleanup_errors=True) as folder:
        story = Story(console, Path(folder))
        try:
            return story.play()
        finally:
            story.close()


if __name__ == "__main__":
    sys.exit(main())
