"""The heap of a broker's process: freed memory that the C library keeps, or gives back (glibc only)."""

from __future__ import annotations

import asyncio
import ctypes
from functools import cache
from typing import Any, Final

__all__ = ["GIVE_BACK_S", "give_back", "keep_freed"]

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEEP_BYTES: Final = 32 << 20
GIVE_BACK_S: Final = 10.0


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip


@cache
def _library(*names: str) -> Any:
    """The C library, if it has these functions. Kept, for each one that is opened leaves garbage."""
    library = ctypes.CDLL(None)
    return library if all(hasattr(library, name) for name in names) else None


def keep_freed() -> None:
    """Let the C library keep the memory of large frames for the next ones. Given back and taken anew, each of its pages
    costs a fault, which is more than all the broker's work with the bytes on it."""
    library = _library("mallopt")
    if library is not None:
        library.mallopt(M_MMAP_THRESHOLD, KEEP_BYTES // 2)
        library.mallopt(M_TRIM_THRESHOLD, KEEP_BYTES)


async def give_back() -> None:
    """Give back free memory between used blocks, if that is more than is to be kept. By itself the library gives back
    only the end of the heap: a few small blocks that live long would keep all that was ever used."""
    library = _library("mallinfo2", "malloc_trim")
    if library is not None:
        # Whoever needs memory of the library waits for it: some 9 ms for 100 MB that are given back. Pages that were
        # not touched since the last time cost next to nothing: what is freed within ten seconds is what counts.
        await asyncio.to_thread(_trim, library)


def _trim(library: Any) -> None:
    library.mallinfo2.restype = _Mallinfo2
    if library.mallinfo2().fordblks > KEEP_BYTES:
        library.malloc_trim(ctypes.c_size_t(KEEP_BYTES))
