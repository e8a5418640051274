"""An alarm rule: kind, scope, threshold, recipients."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec

from towline.clock import SECOND_US, is_ahead
from towline.errors import BadName, BadRequest
from towline.model import EMAILS_MAX, check_emails

__all__ = [
    "ALL",
    "OF_BROKER",
    "REASON_MAX",
    "RULES_MAX",
    "SILENCE_MAX_S",
    "TIME_MAX_US",
    "UNITS",
    "AlarmRule",
    "Until",
    "What",
    "matches",
]

TIME_MAX_US: Final = 253_402_300_799_999_999
Until = Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX_US)]
"""Microseconds since 1970, up to the year 9999."""
What = Literal["dead", "failures", "backlog", "age", "offline", "disk", "store", "retention"]
UNITS: Final[dict[str, str]] = {
    "dead": "dead letters",
    "failures": "failures in 5 minutes",
    "backlog": "messages waiting",
    "age": "seconds that the oldest message waits",
    "offline": "seconds without a consumer",
    "disk": "percent of the disk free",
    "store": "store that failed",
    "retention": "seconds that open messages hold retention back",
}
"""The unit of each kind's threshold. All but `disk` are alarms from the threshold on, `disk` below it."""
OF_BROKER: Final = ("disk", "store", "retention")
"""Kinds about the broker, and no topic or group."""

ALL: Final = "*"
RULES_MAX: Final = 1_000
REASON_MAX: Final = 500
SILENCE_MAX_S: Final = 366 * 86400
"""A silence is for a while; a rule that nobody needs is switched off."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
_PATTERN = re.compile(r"[A-Za-z0-9~][A-Za-z0-9._-]{0,49}\*?|\*")


class AlarmRule(msgspec.Struct, frozen=True):
    name: str
    what: What
    threshold: Annotated[float, msgspec.Meta(ge=0)]
    topic: str = ALL
    """A topic, a prefix that ends with `*`, or `*` for all."""
    group: str = ALL
    emails: Annotated[tuple[str, ...], msgspec.Meta(max_length=EMAILS_MAX)] = ()
    webhooks: Annotated[tuple[str, ...], msgspec.Meta(max_length=EMAILS_MAX)] = ()
    topic_emails: bool = True
    """The alarm e-mails of the topic are recipients, too."""
    for_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 0
    """It must have held for this long."""
    repeat_s: Annotated[float, msgspec.Meta(ge=60, le=30 * 86400)] = 4 * 3600
    """A notice is repeated after this long, while the alarm holds."""
    enabled: bool = True
    silenced_until_us: Until = 0
    """No notices until then. Making or changing a rule leaves this and the reason as they are."""
    silence_reason: Annotated[str, msgspec.Meta(max_length=REASON_MAX)] = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadName(
                f"alarm {self.name[:80]!r}: use 1 to 50 letters, digits, dots, underscores and hyphens, beginning with "
                "a letter or digit"
            )
        for label, pattern in (("topic", self.topic), ("group", self.group)):
            if not _PATTERN.fullmatch(pattern):
                raise BadName(f"alarm {self.name}: {label} {pattern[:80]!r} is not a name, a prefix with * or *")
        if self.what == "disk" and self.threshold > 100:
            raise BadRequest(f"alarm {self.name}: the threshold of a disk is a percentage, not {self.threshold:g}")
        if self.what == "store" and self.threshold != 1:
            raise BadRequest(f"alarm {self.name}: a broker has one store: the threshold is 1, not {self.threshold:g}")
        check_emails(self.emails, f"alarm {self.name}")
        for url in self.webhooks:
            _check_webhook(url, self.name)

    def concerns(self, topic: str, group: str) -> bool:
        return matches(self.topic, topic) and matches(self.group, group)

    def silenced(self, now_us: int) -> bool:
        """Whether it is silenced. A silence that would last longer than allowed was begun by a clock that was ahead."""
        until_us = self.silenced_until_us
        return now_us < until_us and not is_ahead(until_us - SILENCE_MAX_S * SECOND_US, now_us)

    def exceeded(self, value: float) -> bool:
        return value < self.threshold if self.what == "disk" else value >= self.threshold and value > 0


def matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _check_webhook(url: str, name: str) -> None:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and len(url) <= 500 and url.isprintable()
    except ValueError:
        fine = False
    if not fine or " " in url:
        raise BadRequest(f"alarm {name}: webhook {url[:80]!r} is not an http or https address")
