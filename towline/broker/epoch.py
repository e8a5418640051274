"""The document that counts the starts of a store."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["EPOCH", "Epoch"]

EPOCH: Final = "epoch.json"


class Epoch(msgspec.Struct):
    epoch: int = 0
    store: int = 0
    """An id of this store; 0 is not known yet."""
