"""The words of Towline: names, lanes, durability, spans, and the settings of topics and groups."""

from __future__ import annotations

import enum
import re
import zlib
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from towline.errors import BadName, BadRequest

__all__ = [
    "ARRIVED_STREAMS",
    "AT_MOST_ONCE",
    "DEAD_STREAMS",
    "DELAY",
    "DELAY_LEVELS",
    "DELAY_STREAMS",
    "DIED_AT",
    "DIED_ATTEMPT",
    "DIED_ORIGIN",
    "DIED_REASON",
    "EMAILS_MAX",
    "GROUPS_FILE",
    "LANES",
    "LANE_STREAMS",
    "MAX_GROUPS_PER_TOPIC",
    "MAX_SHARDS",
    "MAX_SHARDS_IN_ALL",
    "MAX_TOPICS",
    "OFFSETS_FILE",
    "OWN_STREAMS",
    "PRIVATE",
    "PULL_STREAMS",
    "SCHEDULE_FILE",
    "SCHEDULE_MARKS",
    "TOPICS_FILE",
    "Durability",
    "GroupConfig",
    "Priority",
    "Receipt",
    "RetryPolicy",
    "Span",
    "TopicConfig",
    "arrived_stream",
    "check_consumer",
    "check_emails",
    "check_group",
    "check_pattern",
    "check_producer_group",
    "check_topic",
    "check_topics",
    "dead_stream",
    "is_pattern",
    "lane_name",
    "lane_names",
    "lane_stream",
    "message_id",
    "origin_of",
    "own_stream",
    "parse_delay_levels",
    "parse_message_id",
    "pull_stream",
    "rank",
]

Priority = Literal["high", "middle", "low"]
LANES: tuple[Priority, ...] = ("high", "middle", "low")
"""The lanes of a shared topic, in the order in which a pull fills from them. A lane's number is its place here."""

DELAY = "delay"
"""The word in place of the lane in the id of a delayed message."""
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

PRIVATE = "~"
"""Prefix of the name under which the progress of a consumer without a group is kept."""

AT_MOST_ONCE = "at-most-once"

EMAILS_MAX = 20
MAX_TOPICS = 20_000
MAX_GROUPS_PER_TOPIC = 1_000
MAX_SHARDS = 1_024
"""Shards of one ordered topic …"""
MAX_SHARDS_IN_ALL = 65_536
"""… and of all topics of a broker together."""

_TOPIC = re.compile(r"[a-z0-9][a-z0-9._-]{0,49}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){0,8}")
_GROUP = re.compile(r"~?[A-Za-z0-9][A-Za-z0-9._-]{0,49}")


class Durability(enum.IntEnum):
    """The durability of an acknowledged send."""

    RECEIVED = 0
    """Nothing: it was acknowledged from memory, and is stored soon after."""
    OS = 1
    """A killed broker: it was handed to the operating system."""
    FSYNC = 2
    """Power loss: it is on the disk."""

    @classmethod
    def parse(cls, text: str) -> Durability:
        try:
            return cls[text.upper()]
        except KeyError:
            raise BadRequest(f"durability {text!r} is not one of fsync, os, received") from None


class Span(NamedTuple):
    """`count` messages of one lane, from sequence number `first` on."""

    lane: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple's own count is of no use here

    @property
    def end(self) -> int:
        return self.first + self.count


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """Position of a sent message: it is found by this for as long as it is kept."""

    topic: str
    lane: str
    seq: int
    appended_at_us: int = 0
    broker: str = ""
    """The broker that holds it, in a cluster whose brokers keep their own messages."""

    @property
    def id(self) -> str:
        return message_id(self.topic, self.lane, self.seq)


class RetryPolicy(msgspec.Struct, frozen=True):
    """The policy of retries: the back-off after each failure, and the number of attempts.

    RetryPolicy(max_attempts=5, delays_s=(1, 10, 60))
    RetryPolicy(kind="exponential", first_s=1, factor=2, cap_s=600, jitter=0.2)
    """

    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 16
    delays_s: tuple[float, ...] = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
    """The wait after the first, second, … failed attempt; the last one holds for all that follow."""
    kind: Literal["delays", "exponential"] = "delays"
    """A list of delays, or a wait that grows by a factor from attempt to attempt."""
    first_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 3600.0
    jitter: float = 0.0
    """Up to this fraction of a growing wait is subtracted at random, so that what failed together is not tried
    together."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= 10_000:
            raise BadRequest(f"max_attempts is between 1 and 10,000, not {self.max_attempts}")
        if not (0 <= self.first_s <= self.cap_s <= 366 * 86400 and 1 <= self.factor <= 1000 and 0 <= self.jitter <= 1):
            raise BadRequest(
                "exponential retry: first_s is at most cap_s, cap_s at most a year, factor 1 to 1,000, jitter 0 to 1"
            )
        if not 1 <= len(self.delays_s) <= 100 or any(not 0 <= delay <= 366 * 86400 for delay in self.delays_s):
            raise BadRequest("retry delays: give 1 to 100 of them, each between 0 seconds and a year")

    def delay_s(self, attempt: int, chance: tuple[int, int] = (0, 0)) -> float:
        """The wait after attempt number `attempt` (1 is the first) has failed. The jitter is derived from `chance`,
        numbers that differ from failure to failure: the same numbers give the same wait."""
        if self.kind == "delays":
            return self.delays_s[min(attempt, len(self.delays_s)) - 1]
        # Beyond this many steps any factor worth the name has reached the cap, and a float its end.
        steps = min(attempt - 1, 100)
        wait_s = min(self.first_s * self.factor**steps, self.cap_s)
        if not self.jitter:
            return wait_s
        return wait_s * (1 - self.jitter * zlib.crc32(b"%d/%d" % chance) / 2**32)


class TopicConfig(msgspec.Struct, frozen=True):
    """Settings of a topic, as `topics.json` keeps them."""

    name: str
    created_at_us: int = 0
    retention_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """How long messages are kept; None takes the broker's setting, 0 is for ever."""
    shards: Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARDS)] = 0
    """0 is a shared topic, with a lane for each priority. More is an ordered one, with so many shard lanes; it stays so
    for as long as the topic exists."""
    business_line: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The application or team that it belongs to."""
    author: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The person to ask about it."""
    alarm_emails: Annotated[tuple[str, ...], msgspec.Meta(max_length=20)] = ()
    """Recipients of the alarms about it."""
    start: Literal["", "earliest", "latest"] = ""
    """The position at which its new groups begin, unless their first consumer gives one; empty is the broker's
    setting."""

    def __post_init__(self) -> None:
        check_topic(self.name)
        check_about(self)
        if not 0 <= self.shards <= MAX_SHARDS:
            raise BadRequest(f"topic {self.name}: shards={self.shards} is not between 0 (shared) and {MAX_SHARDS}")

    @property
    def lanes(self) -> tuple[str, ...]:
        return lane_names(self.shards)


class GroupConfig(msgspec.Struct, frozen=True):
    """Settings of a group of a topic, as `subscriptionGroup.json` keeps them."""

    topic: str
    name: str
    start: Annotated[str, msgspec.Meta(pattern=r"^(earliest|latest|@[0-9]{1,18}|)$")] = ""
    """The position at which a new group begins: the oldest message, behind the newest, or a time (`@` and
    microseconds). Empty is the topic's setting, or else the broker's."""
    retry: RetryPolicy = RetryPolicy()
    timeout_s: Annotated[float, msgspec.Meta(ge=0)] = 0
    """A pull not settled after this long is taken away from its consumer; 0 is never, while the consumer beats."""
    max_in_flight: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 100_000
    """How many messages one consumer may hold unsettled."""
    ephemeral: bool = False
    """Forgotten when its only consumer leaves: a broadcast consumer that gave itself no name."""
    created_at_us: int = 0
    dead_retention_s: Annotated[float, msgspec.Meta(ge=0)] = 0
    """How long dead letters are kept, whatever the retention of messages is; 0 is like any message."""
    paused: bool = False
    """Consumers of a paused group wait, and get nothing until it is resumed."""
    pause_reason: Annotated[str, msgspec.Meta(max_length=500)] = ""
    paused_at_us: int = 0
    """The time at which it was paused."""
    share: tuple[int, ...] = (90, 9, 1)
    """How the places of a batch are shared between high, middle and low when it cannot take all: so many parts for
    each, as far as there are messages for them. Empty is strictly by priority, though lower ones may starve."""
    mode: Literal["at-least-once", "at-most-once"] = "at-least-once"
    """At most once: what is delivered counts as consumed, and is never delivered again."""
    expired_to_dead: bool = False
    """Expired messages go to the dead letters instead of being dropped."""

    def __post_init__(self) -> None:
        check_topic(self.topic)
        check_group(self.name)
        if not 1 <= self.max_in_flight <= 10_000_000:
            raise BadRequest(f"max_in_flight is between 1 and 10,000,000, not {self.max_in_flight}")
        if not self.timeout_s >= 0:
            raise BadRequest(f"timeout_s is at least 0, not {self.timeout_s}")
        if self.share and (len(self.share) != len(LANES) or not all(0 <= one <= 10_000 for one in self.share)):
            raise BadRequest(f"group {self.name}: share={self.share} is not three numbers up to 10,000, or none")
        if self.share and not sum(self.share):
            raise BadRequest(f"group {self.name}: a share of nothing at all; () is strictly by priority")


def check_topic(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a topic's name is a str, not {type(name).__name__}")
    if not _TOPIC.fullmatch(name):
        raise BadName(
            f"topic {name[:80]!r}: use 1 to 50 lower-case letters, digits, dots, underscores and hyphens, "
            "beginning with a letter or digit"
        )
    return name


def is_pattern(name: str) -> bool:
    """Whether a name stands for all topics that begin like it: `orders.*`."""
    return name.endswith("*")


def check_pattern(name: str) -> str:
    stem = name[:-1]
    if not is_pattern(name) or (stem and not _TOPIC.fullmatch(stem)):
        raise BadName(f"prefix {name[:80]!r}: use the beginning of a topic's name and a * behind it, as in orders.*")
    return name


def check_topics(name: str) -> str:
    """A topic, or all topics under a prefix."""
    return check_pattern(name) if is_pattern(name) else check_topic(name)


def matches(pattern: str, topic: str) -> bool:
    return topic.startswith(pattern[:-1])


def check_about(config: TopicConfig) -> None:
    for what, text in (("business line", config.business_line), ("author", config.author)):
        if len(text) > 64 or not (text.isprintable() or not text):
            raise BadRequest(f"topic {config.name}: its {what} is a line of at most 64 characters")
    check_emails(config.alarm_emails, f"topic {config.name}")


def check_emails(emails: tuple[str, ...], whose: str) -> None:
    if len(emails) > EMAILS_MAX:
        raise BadRequest(f"{whose}: at most {EMAILS_MAX} e-mail addresses")
    for email in emails:
        if len(email) > 200 or not _EMAIL.fullmatch(email):
            raise BadRequest(f"{whose}: {email[:80]!r} is not an e-mail address")


def check_group(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a group's name is a str, not {type(name).__name__}")
    if not _GROUP.fullmatch(name):
        raise BadName(
            f"group {name[:80]!r}: use 1 to 50 letters, digits, dots, underscores and hyphens, "
            "beginning with a letter or digit"
        )
    return name


def check_consumer(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadName(
            f"consumer {name[:80]!r}: use 1 to 50 letters, digits, dots, underscores and hyphens, "
            "beginning with a letter or digit"
        )
    return name


def check_producer_group(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadName(
            f"producer group {name[:80]!r}: use 1 to 50 letters, digits, dots, underscores and hyphens, "
            "beginning with a letter or digit"
        )
    return name


@lru_cache(maxsize=64)
def lane_names(shards: int) -> tuple[str, ...]:
    """The lanes of a topic by number: its priorities, or the numbers of its shards."""
    return tuple(map(str, range(shards))) if shards else LANES


def lane_name(lane: int, shards: int) -> str:
    """A lane as a group sees it: the topic's, or behind them one of its own (`own-middle`)."""
    names = lane_names(shards)
    return names[lane] if lane < len(names) else f"own-{LANES[lane - len(names)]}"


DIED_ORIGIN: Final = "towline-origin"
DIED_ATTEMPT: Final = "towline-attempt"
DIED_REASON: Final = "towline-reason"
DIED_AT: Final = "towline-died-at"
"""Headers that a dead letter has besides those of the message."""

TOPICS_FILE: Final = "topics.json"
GROUPS_FILE: Final = "subscriptionGroup.json"
OFFSETS_FILE: Final = "consumerOffset.json"
SCHEDULE_FILE: Final = "delayOffset.json"
"""Documents of a store that others read as well."""

LANE_STREAMS: Final = "lane/"
PULL_STREAMS: Final = "pull/"
DEAD_STREAMS: Final = "dead/"
OWN_STREAMS: Final = "own/"
DELAY_STREAMS: Final = "delay/"
ARRIVED_STREAMS: Final = "arrived/"
"""The kinds of streams: their names begin so."""
SCHEDULE_MARKS: Final = f"{DELAY_STREAMS}marks"


def lane_stream(topic: str, lane: str) -> str:
    return f"{LANE_STREAMS}{topic}/{lane}"


def pull_stream(topic: str, group: str) -> str:
    return f"{PULL_STREAMS}{topic}/{group}"


def arrived_stream(topic: str) -> str:
    """The stream of a topic's delayed messages since they were due."""
    return f"{ARRIVED_STREAMS}{topic}"


def dead_stream(topic: str, group: str) -> str:
    return f"{DEAD_STREAMS}{topic}/{group}"


def own_stream(topic: str, group: str, lane: str) -> str:
    """A lane for one group alone: dead letters that are sent again."""
    return f"{OWN_STREAMS}{topic}/{group}/{lane}"


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delay of level 1, 2, … in microseconds."""
    words = text.split()
    matches = [re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd])", word) for word in words]
    if not 1 <= len(words) <= 100 or None in matches:
        raise BadRequest(f"delay levels {text[:200]!r}: give 1 to 100 lengths of time, such as {DELAY_LEVELS[:14]!r}")
    return tuple(round(float(match[1]) * _UNITS_S[match[2]] * 1_000_000) for match in matches if match)


def message_id(topic: str, lane: str, seq: int) -> str:
    return f"{topic}/{lane}/{seq}"


def parse_message_id(text: str) -> tuple[str, str, int]:
    """The topic, lane and number in an id; a broker behind an `@` is cut off. The lane is `delay` in the id that a
    delayed message got when it was sent."""
    topic, _, rest = text.partition("@")[0].partition("/")
    lane, _, seq = rest.partition("/")
    known = lane in (*LANES, DELAY) or (lane.isascii() and lane.isdigit() and len(lane) <= 4)
    if not known or not seq.isascii() or not seq.isdigit() or len(seq) > 19:
        raise BadRequest(f"message id {text[:100]!r} is not of the form topic/lane/number")
    return check_topic(topic), lane, int(seq)


def rank(key: str, broker: str) -> bytes:
    """Rendezvous hashing: a key belongs to the broker of the highest rank."""
    return blake2b(f"{key}|{broker}".encode(), digest_size=8).digest()


def origin_of(host: str) -> str:
    """The origin under which wrong logins are counted: an address; of IPv6 the network of 64 bits, since a machine has
    all of it."""
    import ipaddress  # here only: it takes longer to load than all of the rest

    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        if not ip.is_loopback:
            return str(ipaddress.IPv6Network((ip, 64), strict=False))
    return str(ip)
