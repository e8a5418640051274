"""Times as people type them: `10m`, `2026-05-01T12:00`, `earliest`, or a message number."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, NamedTuple

from cyclopts import Parameter

__all__ = ["Delays", "Duration", "Start", "parse_duration", "parse_start"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])?")


def parse_duration(text: str) -> float:
    """Seconds from `90`, `90s`, `1.5h` or `1h30m`."""
    seconds, at = 0.0, 0
    while match := _DURATION.match(text, at):
        seconds += float(match[1]) * _UNITS[match[2] or "s"]
        at = match.end()
    if not text or at != len(text):
        raise ValueError(f"{text!r} is not a length of time such as 500ms, 30s, 10m, 2h or 7d")
    return seconds


def _duration(type_: object, tokens: tuple[str, ...]) -> float:
    return parse_duration(_value(tokens[0]))


def _delays(type_: object, tokens: tuple[str, ...]) -> tuple[float, ...]:
    return tuple(parse_duration(part.strip()) for part in _value(tokens[0]).split(","))


def _value(token: object) -> str:
    return str(getattr(token, "value", token))


Duration = Annotated[float, Parameter(converter=_duration, n_tokens=1, accepts_keys=False, metavar="DURATION")]
Delays = Annotated[
    tuple[float, ...], Parameter(converter=_delays, n_tokens=1, accepts_keys=False, negative=(), metavar="DURATION,…")
]


class Start(NamedTuple):
    """A position: an end of the topic, a time, or a number in its lane."""

    where: str = "earliest"
    time_us: int = 0
    seq: int = 0

    @property
    def is_an_end(self) -> bool:
        return self.where in ("earliest", "latest")


def parse_start(text: str, now_us: int) -> Start:
    if text in ("earliest", "latest"):
        return Start(text)
    if text.isascii() and text.isdigit():
        return Start("seq", seq=int(text))
    try:
        return Start("time", time_us=max(0, now_us - round(parse_duration(text) * 1_000_000)))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"--from {text!r}: give earliest, latest, a message number, a time (2026-05-01T12:00, 2026-05-01T12:00Z) "
            "or how long ago (10m)"
        ) from None
    return Start("time", time_us=max(0, round(moment.timestamp() * 1_000_000)))
