"""Requests of a backup: the broker keeps the files of its folder, the backup reads them there."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from towline.protocol.base import Natural, Newer
from towline.protocol.messages import ANSWERS, REQUESTS, Answer, Request

__all__ = ["BackupBegun", "BackupHeld", "BeginBackup", "HoldBackup"]

_SINCE: Final = Newer(2, "be backed up while it runs")


class BeginBackup(Request, frozen=True, array_like=True):
    """Save all snapshots now, and drop nothing from the log until the backup is done or its lease is over."""

    kind = 102
    newer = _SINCE


class BackupBegun(Answer, frozen=True, array_like=True):
    kind = 230
    newer = Newer(2)
    ticket: str
    folder: str
    """The broker's folder, on its own machine."""
    lock: Natural
    """The inode number of the folder's lock file: it tells whether a path is that folder."""
    lease_s: float
    """Held for so long, counted anew with each `HoldBackup`."""


class HoldBackup(Request, frozen=True, array_like=True):
    """Extend the lease of the backup; or it is `done`. Refused if the broker could not hold the log any longer."""

    kind = 103
    newer = _SINCE
    ticket: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    done: bool = False


class BackupHeld(Answer, frozen=True, array_like=True):
    """The end of the log; all before it is on the disk."""

    kind = 231
    newer = Newer(2)
    segment: Natural
    position: Natural
    at_us: Natural


REQUESTS.update({cls.kind: cls for cls in (BeginBackup, HoldBackup)})
ANSWERS.update({cls.kind: cls for cls in (BackupBegun, BackupHeld)})
