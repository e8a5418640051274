"""`towline group`: consumer groups, their progress, and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from towline.cli.confirm import DryRun, Yes, confirm, tell
from towline.cli.options import Connection, Usage
from towline.cli.output import Output, about, many, note, print_json, print_pairs, print_table, span, stamp
from towline.cli.times import Delays, Duration, parse_duration, parse_start
from towline.clock import SYSTEM
from towline.errors import NotFound
from towline.model import LANES, GroupConfig, Priority, RetryPolicy
from towline.protocol.groups import NEARLY_FULL
from towline.protocol.messages import GroupState

if TYPE_CHECKING:
    from towline.client._sync.client import Client
    from towline.client.requests import Target
    from towline.protocol.groups import Sought

__all__ = ["group"]


group = App(name="group", help="Consumer groups: how far they are, and their settings.")
Topic = Annotated[str, Parameter(help="The topic.")]
Name = Annotated[str, Parameter(help="The group's name; `~NAME` is the consumer NAME that has no group.")]
OfTopic = Annotated[
    str, Parameter(help="Only the groups of this topic, or of all topics under a prefix: `'orders.*'`.")
]


@group.command
def ls(topic: OfTopic = "", /, *, output: Output = "text", connection: Connection = Connection()) -> None:  # noqa: B008
    """List groups and their settings."""
    with connection.connect() as client:
        states = client.groups(topic)
    if output == "json":
        for state in states:
            print_json(_facts(state))
        return
    rows = [
        (
            state.config.topic,
            state.config.name,
            len(state.members),
            state.config.retry.max_attempts,
            span(state.config.timeout_s) if state.config.timeout_s else "none",
            f"{state.config.max_in_flight:,}",
            "yes" if state.config.paused else "",
        )
        for state in states
    ]
    columns = ("TOPIC", "GROUP", "#CONSUMERS", "#MAX ATTEMPTS", "TIMEOUT", "#MAX IN FLIGHT", "PAUSED")
    print_table(columns, rows, empty="no groups")


@group.command
def lag(topic: OfTopic = "", /, *, output: Output = "text", connection: Connection = Connection()) -> None:  # noqa: B008
    """Show how far behind groups are.

    LAG counts the messages that are neither consumed nor dead: those that wait, those IN FLIGHT at consumers and those
    RETRYING after a failure.
    """
    with connection.connect() as client:
        states = client.groups(topic)
    if output == "json":
        for state in states:
            print_json(_progress(state))
        return
    rows = [
        (
            state.config.topic,
            state.config.name,
            *(f"{number:,}" for number in (state.lag, state.in_flight, state.retrying, state.dead)),
            len(state.members),
        )
        for state in states
    ]
    columns = ("TOPIC", "GROUP", "#LAG", "#IN FLIGHT", "#RETRYING", "#DEAD", "#CONSUMERS")
    print_table(columns, rows, empty="no groups")


@group.command
def info(
    topic: Topic,
    name: Name,
    /,
    *,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Show a group: its settings, its progress in each lane and its consumers."""
    with connection.connect() as client:
        state = client.group(topic, name)
    if output == "json":
        print_json(_facts(state))
        return
    config = state.config
    print_pairs(
        [
            ("topic", config.topic),
            ("group", config.name),
            ("created", stamp(config.created_at_us)),
            ("started from", config.start),
            ("max attempts", config.retry.max_attempts),
            ("retry delays", _retry(config.retry)),
            ("mode", config.mode),
            ("expired", "to the dead letters" if config.expired_to_dead else "dropped"),
            ("timeout", span(config.timeout_s) if config.timeout_s else "none"),
            ("max in flight", f"{config.max_in_flight:,} a consumer"),
            ("share", ", ".join(map(str, config.share)) or "strictly by priority"),
            ("paused", (config.pause_reason or "yes") if config.paused else "no"),
            *([("waits", state.unreadable)] if state.unreadable else []),
            *([("unused for", _expiry(state))] if state.expires_in_s >= 0 and not state.members else []),
            ("lag", f"{state.lag:,}"),
            ("in flight", f"{state.in_flight:,}"),
            ("retrying", f"{state.retrying:,}" + _next_retry(state)),
            *([("retry queue", _full(state.retry_load))] if state.retry_load >= NEARLY_FULL else []),
            ("dead letters", f"{state.dead:,}"),
        ]
    )
    positions = [(lane, f"{at:,}", f"{end:,}", f"{end - at:,}") for lane, at, end in state.positions]
    print_table(("LANE", "#NEXT", "#END", "#WAITING"), positions, empty="no lanes")
    members = [
        (member.consumer, member.address, f"{member.in_flight:,}", "yes" if member.waiting else "no", _ago(member))
        for member in state.members
    ]
    print_table(("CONSUMER", "ADDRESS", "#IN FLIGHT", "WAITING", "LAST SEEN"), members, empty="no consumers")


def _ago(member: Any) -> str:
    return f"{member.last_seen_s:.1f} s ago"


def _full(load: float) -> str:
    return "full: nothing new is delivered" if load >= 1 else f"{100 * load:.0f} % full: then nothing new is delivered"


def _next_retry(state: GroupState) -> str:
    return f" (next at {stamp(state.next_retry_at_us)})" if state.next_retry_at_us else ""


@Parameter(name="*")
@dataclass(frozen=True)
class Retries:
    """How often and when a message that failed is tried again."""

    max_attempts: Annotated[
        int | None, Parameter(help="How often a message is delivered before it goes to the dead letters.")
    ] = None
    retry_delays: Annotated[
        Delays | None,
        Parameter(
            help="The wait after the first, second, … failed attempt, for example `10s,1m,5m`; the last one holds for "
            "all that follow."
        ),
    ] = None
    backoff: Annotated[
        str | None,
        Parameter(
            help="A wait that grows: `FIRST,FACTOR,CAP,JITTER`, for example `1s,2,10m,0.2`; replaces --retry-delays. "
            "The jitter is the part of a wait that chance may leave out, and may be left out itself."
        ),
    ] = None

    def applied(self, policy: RetryPolicy) -> RetryPolicy:
        """The policy with the given options."""
        policy = _changed(policy, max_attempts=self.max_attempts, delays_s=self.retry_delays, **_backoff(self.backoff))
        if self.retry_delays is not None and self.backoff is None:
            policy = _changed(policy, kind="delays")
        return policy


@group.command
def create(
    topic: Topic,
    name: Name,
    /,
    *,
    start: Annotated[
        Literal["earliest", "latest"] | None,
        Parameter(help="Where a new group begins: at the oldest message there is, or at what comes from now on."),
    ] = None,
    retries: Retries = Retries(),  # noqa: B008 it is frozen
    timeout: Annotated[
        Duration | None,
        Parameter(
            help="What a consumer has not settled after so long is taken from it; 0 is never, while it is alive."
        ),
    ] = None,
    max_in_flight: Annotated[int | None, Parameter(help="How many messages one consumer may hold unsettled.")] = None,
    dead_retention: Annotated[
        Duration | None, Parameter(help="How long its dead letters are kept; 0 is as long as messages are.")
    ] = None,
    mode: Annotated[
        Literal["at-least-once", "at-most-once"] | None,
        Parameter(help="At most once: what is delivered counts as consumed, and never comes again."),
    ] = None,
    expired_to_dead: Annotated[
        bool | None, Parameter(help="Messages whose lifetime is over go to the dead letters, rather than away.")
    ] = None,
    share: Annotated[
        str | None,
        Parameter(
            help="How full batches are shared between high, middle and low, for example `90,9,1`; `none` is strictly "
            "by priority, though lower ones may starve."
        ),
    ] = None,
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Make a group, or change the settings of one.

    What is not given keeps its value, or takes the default in a new group.
    """
    _check("--max-attempts", retries.max_attempts, 10_000)
    _check("--max-in-flight", max_in_flight, 10_000_000)
    delays_s = retries.retry_delays
    if delays_s is not None and (len(delays_s) > 100 or max(delays_s) > 366 * 86400):
        raise Usage("--retry-delays: give 1 to 100 of them, each between 0 seconds and a year")
    with connection.connect() as client:
        config = _existing(client, topic, name) or GroupConfig(topic, name)
        retry = retries.applied(config.retry)
        changes: dict[str, Any] = {
            "start": start,
            "timeout_s": timeout,
            "max_in_flight": max_in_flight,
            "dead_retention_s": dead_retention,
            "share": _share(share),
            "mode": mode,
            "expired_to_dead": expired_to_dead,
        }
        client.put_group(_changed(config, retry=retry, **changes))


def _check(flag: str, number: int | None, most: int) -> None:
    if number is not None and not 1 <= number <= most:
        raise Usage(f"{flag} is between 1 and {most:,}, not {number:,}")


def _share(text: str | None) -> tuple[int, ...] | None:
    if text is None or text == "none":
        return None if text is None else ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise Usage(f"--share {text!r}: give three numbers such as 90,9,1, or none") from None


def _backoff(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        first, factor, cap, *jitter = text.split(",")
        return {
            "kind": "exponential",
            "first_s": parse_duration(first),
            "factor": float(factor),
            "cap_s": parse_duration(cap),
            "jitter": float(jitter[0]) if jitter else 0.0,
        }
    except ValueError:
        raise Usage(f"--backoff {text!r}: give FIRST,FACTOR,CAP,JITTER, for example 1s,2,10m,0.2") from None


def _retry(policy: RetryPolicy) -> str:
    if policy.kind == "delays":
        return ", ".join(map(span, policy.delays_s))
    jitter = f", jitter {policy.jitter:g}" if policy.jitter else ""
    return f"from {span(policy.first_s)} by {policy.factor:g} up to {span(policy.cap_s)}{jitter}"


def _existing(client: Client, topic: str, name: str) -> GroupConfig | None:
    try:
        return client.group(topic, name).config
    except NotFound:
        return None


def _changed(config: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(config, **{field: value for field, value in changes.items() if value is not None})


@group.command
def rm(
    topic: Topic,
    name: Name,
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Remove a group: its progress, its retries and its dead letters are forgotten. The topic keeps its messages."""
    with connection.connect() as client:
        state = client.group(topic, name)
        what = f"group {name} of topic {topic}, with {many(state.lag, 'message')} to go and {state.dead:,} dead"
        if not dry_run:
            if not confirm(f"Remove {what}?", yes=yes):
                note("nothing was removed")
                return 1
            client.delete_group(topic, name)
    facts = _progress(state)
    kept = {one: facts[one] for one in ("topic", "group", "lag", "in_flight", "retrying", "dead", "consumers")}
    tell(f"remove {what}", kept, dry_run=dry_run, output=output)
    return 0


def _progress(state: GroupState) -> dict[str, Any]:
    return {
        "topic": state.config.topic,
        "group": state.config.name,
        "lag": state.lag,
        "in_flight": state.in_flight,
        "retrying": state.retrying,
        "next_retry_at": stamp(state.next_retry_at_us) or None,
        "dead": state.dead,
        "consumers": len(state.members),
        "positions": [{"lane": lane, "next": at, "end": end} for lane, at, end in state.positions],
    }


def _expiry(state: GroupState) -> str:
    return f"{about(state.unused_s)}; it is removed in {about(state.expires_in_s)} if nobody uses it"


def _facts(state: GroupState) -> dict[str, Any]:
    config = state.config
    return _progress(state) | {
        "start": config.start,
        "max_attempts": config.retry.max_attempts,
        "retry_delays_s": config.retry.delays_s,
        "retry": msgspec.to_builtins(config.retry),
        "mode": config.mode,
        "expired_to_dead": config.expired_to_dead,
        "timeout_s": config.timeout_s,
        "max_in_flight": config.max_in_flight,
        "dead_retention_s": config.dead_retention_s,
        "ephemeral": config.ephemeral,
        "share": config.share,
        "paused": config.paused,
        "pause_reason": config.pause_reason,
        "unreadable": state.unreadable,
        "retry_load": state.retry_load,
        "unused_s": state.unused_s,
        "expires_in_s": state.expires_in_s if state.expires_in_s >= 0 else None,
        "created_at": stamp(config.created_at_us),
        "members": [
            {
                "consumer": member.consumer,
                "address": member.address,
                "in_flight": member.in_flight,
                "waiting": member.waiting,
                "last_seen_s": member.last_seen_s,
            }
            for member in state.members
        ],
    }


@group.command
def reset(
    topic: Topic,
    name: Name,
    /,
    *,
    to: Annotated[
        str,
        Parameter(
            help="Where the group goes on: earliest, latest, a time (`2026-05-01T12:00Z`), how long ago (`10m`), or "
            "`LANE=NUMBER,…` for some lanes, such as `middle=17` or, in an ordered topic, the shards `0=17,3=4`."
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> int:
    """Let a group go on elsewhere.

    Backwards, everything from there on is delivered again. Forwards, everything up to there is passed over, also what
    waits to be tried again. Consumers lose what they hold of these messages.
    """
    target = _target(to)
    with connection.connect() as client:
        sought = client.seek(topic, name, target, dry_run=True)
        if not dry_run:
            question = f"Move group {name} of topic {topic}: {sought.again:,} again, {sought.passed:,} passed over?"
            if not confirm(question, yes=yes):
                note("nothing was moved")
                return 1
            sought = client.seek(topic, name, target)
    if output == "json":
        print_json(_facts_of_seek(topic, name, sought, dry_run=dry_run))
        return 0
    rows = [(lane, f"{at:,}", f"{end:,}") for lane, at, end in sought.moves if at != end]
    print_table(("LANE", "#FROM", "#TO"), rows, empty="it is there already")
    would = "would be " if dry_run else ""
    print(f"{many(sought.again, 'message')} {would}delivered again, {sought.passed:,} {would}passed over")
    return 0


@group.command
def pause(
    topic: Topic,
    name: Name,
    /,
    *,
    reason: Annotated[str, Parameter(help="Why; it is shown with the group.")] = "",
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Let a group rest: its consumers get nothing until it is resumed."""
    with connection.connect() as client:
        client.pause(topic, name, reason)
    if output == "json":
        print_json({"topic": topic, "group": name, "paused": True, "reason": reason})


@group.command
def resume(
    topic: Topic,
    name: Name,
    /,
    *,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Let a paused group go on."""
    with connection.connect() as client:
        client.resume(topic, name)
    if output == "json":
        print_json({"topic": topic, "group": name, "paused": False})


def _target(text: str) -> Target:
    if "=" in text:
        return dict(_position(part) for part in text.split(","))
    try:
        start = parse_start(text, SYSTEM.now_us())
    except ValueError as error:
        raise Usage(str(error).replace("--from", "--to")) from None
    if start.where == "seq":
        raise Usage(f"--to {text}: say of which lane, for example middle={text}")
    return datetime.fromtimestamp(start.time_us / 1e6, UTC) if start.where == "time" else start.where


def _position(text: str) -> tuple[Priority | int, int]:
    lane, _, seq = text.strip().partition("=")
    known: Priority | int | None = next((one for one in LANES if one == lane), None)
    if known is None and lane.isascii() and lane.isdigit():
        known = int(lane)
    if known is None or not (seq.isascii() and seq.isdigit()):
        raise Usage(f"--to {text!r} is not LANE=NUMBER: lanes are high, middle and low, or numbers of shards")
    return known, int(seq)


def _facts_of_seek(topic: str, name: str, sought: Sought, *, dry_run: bool) -> dict[str, object]:
    return {
        "topic": topic,
        "group": name,
        "dry_run": dry_run,
        "again": sought.again,
        "passed": sought.passed,
        "moves": [{"lane": lane, "from": at, "to": end} for lane, at, end in sought.moves],
    }
