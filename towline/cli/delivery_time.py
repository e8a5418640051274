"""Times of delivery, as people type them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from towline.cli.options import Usage

__all__ = ["parse_time", "when"]


def parse_time(text: str) -> float:
    """Unix time from itself, or from `2026-05-01T12:00` (by this machine's time zone) and its like."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise Usage(f"{text!r} is not a time such as 2026-05-01T12:00, 2026-05-01T12:00Z or 1777636800") from None


def when(delay: float | None, at: str | None, delay_level: int | None) -> dict[str, Any]:
    """The client's option: `delay`, `deliver_at` or `delay_level`, or none of them."""
    given = {"delay": delay, "deliver_at": None if at is None else parse_time(at), "delay_level": delay_level}
    chosen = {name: value for name, value in given.items() if value is not None}
    if len(chosen) > 1:
        raise Usage("--delay, --at or --delay-level: give one of them")
    return chosen
