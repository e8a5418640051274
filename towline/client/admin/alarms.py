"""The end of an alarm's silence."""

from __future__ import annotations

import math
from datetime import datetime

from towline.alarms.rule import TIME_MAX_US
from towline.client.produce.encode import as_time_us
from towline.clock import SYSTEM
from towline.errors import BadRequest

__all__ = ["end_of_silence"]


def end_of_silence(name: str, for_s: float | None, until: datetime | float | None) -> int:
    if (for_s is None) == (until is None):
        raise BadRequest(f"alarm {name}: say for how long it is silenced, or until when: one of for_s and until")
    given = for_s if for_s is not None else until
    if isinstance(given, int | float) and not math.isfinite(given):
        raise BadRequest(f"alarm {name}: a silence ends some day, not after {given} seconds")
    until_us = as_time_us(until) if until is not None else SYSTEM.now_us() + round((for_s or 0) * 1e6)
    if not 0 < until_us <= TIME_MAX_US:
        raise BadRequest(f"alarm {name}: a silence ends in the future, and before the year 10000")
    return until_us
