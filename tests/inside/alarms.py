"""Names of `towline.alarms`, for tests."""

from __future__ import annotations

from towline.alarms import book, watch
from towline.alarms.book import RuleBook
from towline.alarms.rule import UNITS, AlarmRule, What
from towline.alarms.watch import Alarm, Change, Notice, Reading, Watch
