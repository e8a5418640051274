"""The scenes of the demo."""

from __future__ import annotations

import time
from collections.abc import Callable

from towline.demo.consumer import FLAKY, POISON, THIRD, TOPIC
from towline.demo.picture import report
from towline.demo.pipeline import pipeline
from towline.demo.shop import ORDERS, Shop
from towline.demo.story import GROUPS, Story
from towline.model import GroupConfig, RetryPolicy

__all__ = ["SCENES"]

RETRY_DELAYS_S = (0.2, 0.4)
MAX_ATTEMPTS = 5
LATER = 10_000
"""From here on: orders for later."""
COUNT_LATER = 60
COMMITTED = 20_000
ABORTED = 30_000
LATE_MAX_S = 1.0


def opening(story: Story) -> None:
    took_s = story.broker.start()
    story.tell(f"a broker listens on {story.broker.url} after {took_s:.2f} s, with an empty log")
    mq = story.connect()
    mq.create_topic(TOPIC)
    mq.put_group(GroupConfig(TOPIC, "billing", retry=RetryPolicy(MAX_ATTEMPTS, RETRY_DELAYS_S)))
    mq.put_group(GroupConfig(TOPIC, "shipping"))
    story.hire("billing", "billing-1", hangs_at=ORDERS // 3)
    story.hire("billing", "billing-2")
    story.hire("shipping", "shipping-1")
    story.shop = Shop(story.broker.url)
    story.shop.start()
    story.expected |= set(range(1, ORDERS + 1))
    story.tell(f"the shop sends {ORDERS:,} orders; billing has two consumers, shipping one", "the shop opens")


def priorities(story: Story) -> None:
    """Waiting messages are pulled from high to low, in one batch."""
    mq, sent = story.mq, ("low", "middle", "high")
    for priority in sent:
        mq.send_many("queue", [priority.encode()] * 5, priority=priority)  # type: ignore[arg-type]
    with mq.consumer("queue", group="clerk") as consumer:
        batch = consumer.pull(max_messages=20, wait=5.0)
        came = [message.body.decode() for message in batch]
        batch.ack()
    story.tell(f"sent {' < '.join(sent)}; pulled in one batch: {' > '.join(dict.fromkeys(came))}")
    story.promise("what is urgent comes first", came == ["high"] * 5 + ["middle"] * 5 + ["low"] * 5)


def later(story: Story) -> None:
    """Orders for later, one by a level of RocketMQ's, one that is cancelled."""
    delays_s = [0.5 + 2.5 * number / COUNT_LATER for number in range(COUNT_LATER)]
    orders = [LATER + 1 + number for number in range(COUNT_LATER)]
    now_s = time.time()
    story.mq.send_many(TOPIC, [str(order).encode() for order in orders], delays=delays_s, priority="high")
    level, cancelled = orders[-1] + 1, orders[-1] + 2
    story.mq.send(TOPIC, str(level).encode(), delay_level=1)
    receipt = story.mq.send(TOPIC, str(cancelled).encode(), delay=3.0)
    count = story.mq.cancel(TOPIC, receipt)
    story.due_s = {order: now_s + delay_s for order, delay_s in zip(orders, delays_s, strict=True)}
    story.due_s[level] = now_s + 1.0
    story.expected |= set(story.due_s)
    story.tell(f"{len(story.due_s)} orders are for later, in 0.5 to 3 s; another one is cancelled", "orders for later")
    story.promise("a delayed order can be cancelled", count == 1)


def transactions(story: Story) -> None:
    """One over two topics commits; one is aborted by an error in the middle of it."""
    mq = story.mq
    with mq.transaction() as tx:
        for number in range(3):
            tx.send(TOPIC, str(COMMITTED + number).encode())
            tx.send("stock", f"minus one for {COMMITTED + number}".encode())
        unseen = not mq.topics() or "stock" not in {one.config.name for one in mq.topics()}
    story.expected |= {COMMITTED + number for number in range(3)}
    story.promise("nothing of a transaction is seen before it commits", unseen)
    try:
        with mq.transaction() as tx:
            tx.send(TOPIC, str(ABORTED).encode())
            tx.send("stock", f"minus one for {ABORTED}".encode())
            raise LookupError("out of stock")
    except LookupError as error:
        why = str(error)
    stock = [message.body.decode() for message in mq.browse("stock", "middle", max_messages=100)]
    story.tell(f"a transaction over two topics commits; another is [red]aborted[/red]: {why}", "commit, and an abort")
    story.promise(
        "a transaction is whole, or absent", stock == [f"minus one for {COMMITTED + number}" for number in range(3)]
    )


def lose_a_consumer(story: Story) -> None:
    victim, shop = story.consumers[0], story.shop

    def held() -> int:
        members = story.mq.group(TOPIC, "billing").members
        return sum(member.in_flight for member in members if member.consumer == victim.name)

    story.until("the first consumer of billing hangs", lambda: held() > 0 and shop.sent >= ORDERS // 2.5)
    count = held()
    victim.kill()
    story.tell(
        f"consumer {victim.name} hangs with {count} order{'s' * (count != 1)} in its hands: [red]kill -9[/red]",
        "a consumer is killed",
    )
    waited_s = story.until("what it held was given to the other", lambda: held() == 0)
    story.tell(f"its orders went to the other consumer of its group after {waited_s:.2f} s")
    story.promise("a killed consumer's orders come back within 2 s", waited_s < 2)


def lose_the_broker(story: Story) -> None:
    story.until("two thirds of the orders were sent", lambda: story.shop.sent >= 2 * ORDERS // 3)
    before = story.shop.sent
    story.broker.kill()
    story.tell(f"[red]kill -9[/red] the broker, after {before:,} confirmed orders", "the broker is killed")
    took_s = story.broker.start()
    story.tell(f"it is back after {took_s:.2f} s; shop and consumers go on by themselves", "it is back")
    story.until("all orders were sent", lambda: story.shop.sent == ORDERS)
    story.tell(f"all {ORDERS:,} orders were sent and confirmed; the slowest took {story.shop.slowest_s:.2f} s")


def bring_back_the_dead(story: Story) -> None:
    mq = story.mq
    story.until("the bad order died", lambda: mq.group(TOPIC, "billing").dead > 0)
    letters = list(mq.dead_letters(TOPIC, "billing"))
    for letter in letters:
        reason = letter.reason.partition("\n")[0]
        story.tell(
            f"order {letter.body.decode()} is [red]dead[/red] after {letter.attempt} attempts: {reason!r}",
            "an order dies",
        )
    story.promise("exactly one order died", [int(letter.body) for letter in letters] == [POISON])
    story.mended.touch()
    mq.resend(TOPIC, "billing")
    story.tell("the handler is mended, and the dead letter is sent again", "it is sent again")
    story.until("the dead order was handled", lambda: POISON in story.handled("billing"))


def catching_up(story: Story) -> None:
    for group in GROUPS:
        story.until(f"{group} has caught up", lambda group=group: story.lag(group) == 0)  # type: ignore[misc]


def closing(story: Story) -> None:
    everybody = [told for each in story.consumers for told in each.handled]
    for group in GROUPS:
        handled = story.handled(group)
        missing, extra = story.expected - set(handled), set(handled) - story.expected
        story.promise(
            f"{group} handled every order, and no other"
            + f": {len(missing)} missing, {len(extra)} extra" * bool(missing or extra),
            not missing and not extra,
        )
    flaky = [told for each in story.consumers if each.group == "billing" for told in each.handled]
    hasty = [told for told in flaky if told.order % FLAKY == 0 and told.order <= ORDERS and told.attempt < THIRD]
    story.promise("an order that failed is tried again until it succeeds", not hasty)
    early = [told for told in everybody if told.at_s < story.due_s.get(told.order, 0)]
    story.promise("no order for later came early", not early)
    kept = sum(lane.end - lane.first for lane in story.mq.topic(TOPIC).lanes)
    story.promise(f"the topic holds {len(story.expected):,} orders", kept == len(story.expected))
    report(story)


Scene = Callable[[Story], None]

SCENES: tuple[Scene, ...] = (
    opening,
    priorities,
    later,
    transactions,
    lose_a_consumer,
    lose_the_broker,
    bring_back_the_dead,
    catching_up,
    pipeline,
    closing,
)
"""In this order. The broker of the story still runs when the last one ends: scenes about its data come there."""
