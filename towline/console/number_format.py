"""Figures, sizes and times as people read them; times in the user's zone."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

__all__ = ["age", "many", "moment", "number", "per_second", "plain", "size", "span", "zone_of"]


def zone_of(name: str | None) -> tzinfo:
    """The zone that a browser names; UTC if we do not know it."""
    try:
        return ZoneInfo(name) if name and len(name) <= 64 else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def moment(at_us: int, zone: tzinfo, *, exact: bool = False) -> str:
    if not at_us:
        return "–"
    try:
        time = datetime.fromtimestamp(at_us / 1e6, zone)
    except (ValueError, OverflowError, OSError):
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S") + (f".{at_us % 1_000_000 // 1000:03}" if exact else "")


def number(value: float) -> str:
    return f"{value:,.0f}"


def many(count: int, one: str, more: str = "") -> str:
    """So many of them, in words: `1 message`, `2 messages`."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def per_second(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}/s"
    return f"{value:.1f}/s" if value >= 0.05 else "0/s"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def span(seconds: float) -> str:
    """A length of time, in two units at most."""
    rest = round(max(seconds, 0))
    if rest < 1:
        return "0 s" if seconds <= 0 else "< 1 s"
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def age(at_us: int, now_us: int) -> str:
    return span((now_us - at_us) / 1e6) if at_us else "–"


_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)} | {0x7F: "\u2421"}
_MARKS = {
    code: f"⟨U+{code:04X}⟩"
    for code in (*range(0x80, 0xA0), *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
}


def plain(text: str) -> str:
    """Text without control characters and without those that turn its direction: they are made visible."""
    return text.translate(_PICTURES | _MARKS)
