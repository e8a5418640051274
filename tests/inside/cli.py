"""Names of commands, for tests."""

from __future__ import annotations

from towline.cli.check import (
    CRITICAL,
    OK,
    WARNING,
    _look,
    _look_at_broadcast,
    _look_at_dedup,
    _look_at_lag,
    _look_at_remains,
    _look_at_retention,
    _look_at_snapshots,
    _summary,
)
from towline.cli.confirm import tell
from towline.cli.output import about, ask, note, print_line
from towline.cli.serve import settings
