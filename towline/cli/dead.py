"""`towline dead`: dead letters: list, send again, edit, export, drop."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from towline.cli.confirm import DryRun, Yes, confirm
from towline.cli.find import moment
from towline.cli.options import Connection, Usage
from towline.cli.output import Output, first_line, many, note, print_json, print_pairs, print_table, stamp
from towline.cli.render import preview, text_or_base64

if TYPE_CHECKING:
    from towline.client._sync.client import Client
    from towline.client.consume.message import DeadLetter

__all__ = ["dead"]

dead = App(name="dead", help="Dead letters: messages that were given up, and sending them again.")

Topic = Annotated[str, Parameter(help="The topic.")]
Group = Annotated[str, Parameter(help="The group that gave them up.")]

Number = Annotated[int, Parameter(help="The number of the dead letter, as `towline dead ls` shows it.")]

PAGE = 1_000
REASON_SHOWN = 200
KEY_SHOWN = 1_000


Broker = Annotated[
    str | None,
    Parameter(help="In a cluster whose brokers keep their own messages: those at this one (its name or address)."),
]


@Parameter(name="*", group="Which")
@dataclass(frozen=True)
class Which:
    """Some of the dead letters."""

    reason: Annotated[str, Parameter(help="Those whose reason contains this text.", show_default=False)] = ""
    key: Annotated[str | None, Parameter(help="Those with exactly this key.")] = None
    since: Annotated[
        str | None, Parameter(help="Those that died at this time or later: `2026-05-01T12:00Z`, or `10m` ago.")
    ] = None
    until: Annotated[str | None, Parameter(help="Those that died before this time.")] = None
    broker: Broker = None

    @property
    def given(self) -> bool:
        return bool(self.reason) or any(value is not None for value in (self.key, self.since, self.until))

    def letters(
        self, client: Client, topic: str, group: str, *, first: int = 0, resent: bool = False
    ) -> Iterator[DeadLetter]:
        """Page by page: all of them may be more than fits into memory."""
        from towline.client.admin.dead_letters import sought

        since, until = moment("--since", self.since), moment("--until", self.until)
        fits = sought(reason=self.reason, key=self.key, since=since, until=until, resent=resent)
        brokers: list[str | None] = [self.broker] if self.broker else [*client.separate_brokers()] or [None]
        for broker in brokers:
            at = first
            while True:
                page = client.dead_letters(topic, group, first=at, max_messages=PAGE, broker=broker)
                yield from filter(fits, page)
                if page.next <= at or page.next >= page.end:
                    break
                at = page.next


@dead.command
def ls(
    topic: Topic,
    group: Group,
    /,
    *,
    first: Annotated[int, Parameter(help="Begin with this number.")] = 0,
    limit: Annotated[int, Parameter(name=("--limit", "-n"), help="Show at most so many.")] = 100,
    all_: Annotated[
        bool, Parameter(name="--all", negative=(), show_default=False, help="Show also those that were sent again.")
    ] = False,
    which: Which = Which(),  # noqa: B008
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """List the dead letters of a group: when and why they died, at which attempt, and which messages they were.

    The numbers are what `towline dead resend` takes.
    """
    rows: list[tuple[object, ...]] = []
    more = ""
    with connection.connect() as client:
        for count, letter in enumerate(which.letters(client, topic, group, first=first, resent=all_)):
            if count == limit:
                more = f"there are more: --first {letter.number}, or a larger --limit"
                break
            if output == "json":
                print_json(_facts(letter))
            else:
                rows.append(_row(letter))
    if more:
        note(more)
    if output == "json":
        return
    print_table(
        ("#NUMBER", "DIED AT", "#ATTEMPT", "MESSAGE", "KEY", "STATE", "REASON", "BODY"), rows, empty="no dead letters"
    )


def _row(letter: DeadLetter) -> tuple[object, ...]:
    return (
        f"{letter.number}" + (f" @{letter.broker}" if letter.broker else ""),
        stamp(letter.died_at_us),
        letter.attempt,
        letter.origin,
        (letter.key or "")[:KEY_SHOWN],
        "resent" if letter.resent else "",
        first_line(letter.reason),
        preview(letter.body),
    )


@dead.command
def count(
    topic: Topic,
    group: Group,
    /,
    *,
    which: Which = Which(),  # noqa: B008
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Count the dead letters of a group by reason, without its stack, the most frequent first."""
    with connection.connect() as client:
        reasons = Counter(first_line(letter.reason) for letter in which.letters(client, topic, group))
    if output == "json":
        for reason, number in reasons.most_common():
            print_json({"reason": reason, "count": number})
        return
    rows = [(f"{number:,}", reason[:REASON_SHOWN]) for reason, number in reasons.most_common()]
    print_table(("#COUNT", "REASON"), rows, empty="no dead letters")


@dead.command
def show(
    topic: Topic,
    group: Group,
    number: Number,
    /,
    *,
    broker: Broker = None,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Show one dead letter whole."""
    with connection.connect() as client:
        letter = client.dead_letter(topic, group, number, broker=broker)
    facts = _facts(letter)
    if output == "json":
        print_json(facts)
        return
    pairs: list[tuple[str, object]] = []
    headers = facts.pop("headers")
    for name, value in facts.items():
        # The stack behind a reason has lines of its own.
        lines = value.split("\n") if name == "reason" else ["" if value is None else value]
        pairs += [(name.replace("_", " ") if line is lines[0] else "", line) for line in lines]
    print_pairs(pairs)
    print_pairs([(f"header {name}", value) for name, value in headers.items() if not name.startswith("towline-")])


@dead.command
def resend(
    topic: Topic,
    group: Group,
    *numbers: Annotated[int, Parameter(help="The numbers of the dead letters, as `towline dead ls` shows them.")],
    all_: Annotated[
        bool, Parameter(name="--all", negative=(), show_default=False, help="All of them that were not sent again yet.")
    ] = False,
    which: Which = Which(),  # noqa: B008
    limit: Annotated[
        int | None, Parameter(name=("--limit", "-n"), help="With --all or a filter: the oldest so many of them.")
    ] = None,
    rate: Annotated[float | None, Parameter(help="At most so many a second.")] = None,
    dry_run: DryRun = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Deliver dead letters to their group again, counting attempts from one."""
    if [bool(numbers), all_, which.given].count(True) != 1:
        raise Usage("say which: give their numbers, or --all, or a filter such as --reason")
    if limit is not None and (numbers or limit < 1):
        raise Usage("--limit is at least 1, and goes with --all or a filter")
    if rate is not None and rate <= 0:
        raise Usage("--rate is more than 0 a second")
    with connection.connect() as client:
        if all_ and limit is None and rate is None and not dry_run:
            done = client.resend(topic, group, broker=which.broker)
        else:
            letters = which.letters(client, topic, group) if not numbers else iter(())
            chosen = list(numbers) or [letter.number for letter in islice(letters, limit)]
            done = len(chosen) if dry_run else _resend_slowly(client, topic, group, chosen, rate, which.broker)
        left = client.group(topic, group).dead
    if output == "json":
        facts: dict[str, Any] = {"topic": topic, "group": group, "resent": done, "left": left}
        print_json(facts | {"dry_run": True} if dry_run else facts)
    elif dry_run:
        print(f"would resend {done:,} of {many(left, 'dead letter')}")
    else:
        print(f"resent {many(done, 'dead letter')}, {left:,} left")


def _resend_slowly(  # noqa: PLR0917 - what the command was given
    client: Client, topic: str, group: str, numbers: list[int], rate: float | None, broker: str | None
) -> int:
    """A tenth of a second's worth at a time, each when its turn has come."""
    step = max(round(rate / 10), 1) if rate else max(len(numbers), 1)
    begun, done = time.monotonic(), 0
    for at in range(0, len(numbers), step):
        if rate:
            time.sleep(max(begun + at / rate - time.monotonic(), 0))
        done += client.resend(topic, group, numbers[at : at + step], broker=broker)
    return done


@dead.command
def edit(
    topic: Topic,
    group: Group,
    number: Number,
    /,
    *,
    body: Annotated[str | None, Parameter(help="The new body, as text.")] = None,
    body_file: Annotated[Path | None, Parameter(help="A file with the new body.")] = None,
    key: Annotated[str | None, Parameter(help="The new key; an empty one removes it.")] = None,
    header: Annotated[
        list[str] | None, Parameter(help="NAME=VALUE, once for each: they take the place of all headers.", negative=())
    ] = None,
    broker: Broker = None,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Deliver one dead letter to its group again, changed.

    What is not given is taken from the letter, which itself stays as it is.
    """
    if body is None and body_file is None and key is None and header is None:
        raise Usage("say what to change: --body, --body-file, --key or --header")
    if body is not None and body_file is not None:
        raise Usage("give --body or --body-file, not both")
    try:
        content = body.encode() if body is not None else None if body_file is None else body_file.read_bytes()
    except OSError as error:
        raise Usage(f"--body-file {body_file}: {error.strerror}") from None
    headers = None if header is None else dict(_header(text) for text in header)
    with connection.connect() as client:
        client.revise(topic, group, number, body=content, key=key, headers=headers, broker=broker)
        left = client.group(topic, group).dead
    if output == "json":
        print_json({"topic": topic, "group": group, "number": number, "resent": 1, "left": left})
    else:
        print(f"resent dead letter {number}, changed; {left:,} left")


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Usage(f"--header {text!r}: write NAME=VALUE")
    return name, value


@dead.command
def export(
    topic: Topic,
    group: Group,
    /,
    *,
    all_: Annotated[
        bool, Parameter(name="--all", negative=(), show_default=False, help="Also those that were sent again.")
    ] = False,
    which: Which = Which(),  # noqa: B008
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Print dead letters as JSON, one object a line, for a file: `towline dead export TOPIC GROUP > dead.jsonl`."""
    with connection.connect() as client:
        for letter in which.letters(client, topic, group, resent=all_):
            print_json(_facts(letter), flush=False)


@dead.command
def purge(
    topic: Topic,
    group: Group,
    /,
    *,
    before: Annotated[int | None, Parameter(help="Those with a lower number than this.")] = None,
    until: Annotated[str | None, Parameter(help="Those that died before this time, or so long ago: `30d`.")] = None,
    all_: Annotated[bool, Parameter(name="--all", negative=(), show_default=False, help="All of them.")] = False,
    broker: Broker = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Drop dead letters for good, the oldest ones. This cannot be undone: `towline dead export` keeps a copy."""
    if [before is not None, until is not None, all_].count(True) != 1:
        raise Usage("say which: --before NUMBER, --until TIME or --all")
    with connection.connect() as client:
        until_s = moment("--until", until)
        brokers: list[str | None] = [broker] if broker else [*client.separate_brokers()] or [None]
        if before is not None and len(brokers) > 1:
            raise Usage(f"--before counts at one broker: name it with --broker, one of {', '.join(map(str, brokers))}")
        ends = {one: before if before is not None else _end(client, topic, group, until_s, one) for one in brokers}
        going = 0
        if dry_run or not yes:  # to get their number, one must be allowed to read them
            letters = {one: Which(broker=one).letters(client, topic, group) for one in brokers}
            going = sum(letter.number < ends[one] for one, some in letters.items() for letter in some)
        if not dry_run:
            if not confirm(f"Drop {many(going, 'dead letter')} of group {group} on topic {topic} for good?", yes=yes):
                note("nothing was dropped")
                return 1
            going = sum(client.purge_dead(topic, group, int(end), broker=one) for one, end in ends.items())
        left = client.group(topic, group).dead
    if output == "json":
        print_json({"topic": topic, "group": group, "purged": going, "left": left, "dry_run": dry_run})
    else:
        print(
            f"would drop {going:,} of {many(left, 'dead letter')}" if dry_run else f"dropped {going:,}, {left:,} left"
        )
    return 0


def _end(client: Client, topic: str, group: str, until_s: float | None, broker: str | None) -> int:
    """The number behind the last letter that died before this time; letters are in the order in which they died."""
    if until_s is not None:
        young = client.find_dead(topic, group, since=until_s, resent=True, limit=1, broker=broker)
        if young:
            return young[0].number
    return client.dead_letters(topic, group, max_messages=1, broker=broker).end


def _facts(letter: DeadLetter) -> dict[str, Any]:
    body, encoding = text_or_base64(letter.body)
    where = {"broker": letter.broker} if letter.broker else {}
    return {
        "number": int(letter.number),
        **where,
        "origin": letter.origin,
        "attempt": letter.attempt,
        "reason": letter.reason,
        "died_at": stamp(letter.died_at_us),
        "resent": letter.resent,
        "key": letter.key,
        "headers": letter.headers,
        "encoding": encoding,
        "body": body,
    }
