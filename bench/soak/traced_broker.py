"""A broker that tells every minute what its memory is made of: `python -m bench.soak.traced_broker FILE serve …`."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any, Final, TextIO

from towline.load.broker import BrokerProcess

__all__ = ["TracedBroker", "main"]

EVERY_S: Final = 60.0
WARM: Final = 3
"""Reports until what grows is counted."""
TOP: Final = 30
FRAMES: Final = 3


class TracedBroker(BrokerProcess):
    def __init__(self, store: str, file: Path, **settings: Any) -> None:
        super().__init__(store, **settings)
        self.program = ("-m", __name__, str(file.absolute()))


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]  # fmt: skip


def _allocated() -> str:
    """What the C library has from the system, and how much of it is in use."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    shown = {"heap": info.arena, "in use": info.uordblks, "free": info.fordblks, "mapped": info.hblkhd}
    return ", ".join(f"{name} {value / 1e6:.1f} MB" for name, value in shown.items())


def _kinds() -> Counter[str]:
    return Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())


def _report(file: TextIO, base: tracemalloc.Snapshot | None, kinds: Counter[str]) -> tracemalloc.Snapshot:
    ignored = [tracemalloc.Filter(inclusive=False, filename_pattern=name) for name in (tracemalloc.__file__, __file__)]
    snapshot = tracemalloc.take_snapshot().filter_traces(ignored)
    traced, _ = tracemalloc.get_traced_memory()
    print(f"\n== {time.strftime('%H:%M:%S')} traced {traced / 1e6:.1f} MB; C library: {_allocated()}", file=file)
    for line in snapshot.statistics("lineno")[:TOP]:
        print(f"  {line}", file=file)
    if base is not None:
        print("-- grown since it was warm", file=file)
        for diff in snapshot.compare_to(base, "traceback")[:TOP]:
            print(f"  {diff.size_diff / 1e3:+.1f} kB, {diff.count_diff:+} blocks", file=file)
            for text in diff.traceback.format():
                print(f"    {text.strip()}", file=file)
        for kind, more in (_kinds() - kinds).most_common(TOP):
            print(f"  {more:+} {kind}", file=file)
    file.flush()
    return snapshot


def _report_for_ever(path: str) -> None:
    base, kinds = None, Counter[str]()
    with Path(path).open("w", encoding="utf-8") as file:
        for number in range(sys.maxsize):
            time.sleep(EVERY_S)
            snapshot = _report(file, base, kinds)
            if number == WARM:
                base, kinds = snapshot, _kinds()


def main() -> None:
    from towline.cli import main as towline

    path = sys.argv.pop(1)
    tracemalloc.start(FRAMES)
    threading.Thread(target=_report_for_ever, args=(path,), daemon=True).start()
    towline()


if __name__ == "__main__":
    main()
