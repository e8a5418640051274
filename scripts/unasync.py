"""Makes the blocking client of the asyncio one: `towline/client/_async/x.py` is the source of `_sync/x.py`.

    python scripts/unasync.py            write what differs
    python scripts/unasync.py --check    say what differs, and fail

Files by hand stand in HAND: those have another counterpart in `_sync`, or none. Everything else is text: what awaits
does not, and names get their counterparts, in comments and docstrings as well. Ruff sorts and formats the result.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CLIENT: Final = Path("towline/client")
FOLDERS: Final = (CLIENT, CLIENT / "admin")
"""Those that have a folder `_async`, of which `_sync` is made."""
HAND: Final = {CLIENT / "_async" / name for name in ("process_end.py", "producer.py")}
MARK: Final = "# Generated from {} by scripts/unasync.py: change it there."

REPLACEMENTS: Final = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Types
        (r"\bOpening\[(\w+)\]", r"\1"),
        (r"\b(\w+) \| Awaitable\[\1\]", r"\1"),
        (r"\bAwaitable\[((?:[^][]|\[[^][]*\])*)\]", r"\1"),
        # Syntax
        (r"\(await ((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)(?=[.\[])", r"\1"),
        (r"\basync (def|for|with)\b", r"\1"),
        (r"\bawait (?=[\w(\[])", ""),
        (r"\b__a(enter|exit|iter)__\b", r"__\1__"),
        # Names
        (r"\bAsync(Iterator|ExitStack)\b", r"\1"),
        (r"\bpush_async_callback\b", "callback"),
        (r"\bOpening\b", "opened"),
        (r"\bdrive_later\b", "drive"),
        (r"\bAio(\w+)", r"\1"),
        (r"\b(acquire|release)_here\b", r"\1"),
        (r"\b_async\b", "_sync"),
        (r"\blink\.aio\b", "link.blocking"),
        (r"\bconcurrency\.tasks\b", "concurrency.threads"),
        (r"\btowline\.aio\b", "towline"),
        # Words
        (r"\basyncio\b", "blocking"),
        (r"\ban blocking\b", "a blocking"),
        (r"\btask(s?)\b", r"thread\1"),
        (r"; `message\.ack\(\)` and its kin are not awaited", ""),
        (r"; it may be a\s+coroutine function\b", ""),
    )
]


def sources() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder / "_async").glob("[!_]*.py"))]
    return [path for path in found if path.relative_to(ROOT) not in HAND]


def target_of(source: Path) -> Path:
    return source.parent.with_name("_sync") / source.name


def generated(source: Path) -> str:
    text = source.read_text(encoding="utf-8")
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = f"{MARK.format(source.relative_to(ROOT).as_posix())}\n{text}"
    name = str(target_of(source))
    text = _ruff(
        "check", "--fix-only", "--quiet", "--select", "F401,F811,I,RUF022", "--stdin-filename", name, text=text
    )
    return _ruff("format", "--stdin-filename", name, text=text)


def _ruff(*given: str, text: str) -> str:
    command = [str(Path(sys.executable).with_name("ruff")), *given, "-"]
    return subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout


def stale() -> dict[Path, str]:
    """The files that are not as they would be made, and how they would be; empty are those whose source has gone."""
    made = {target_of(source): generated(source) for source in sources()}
    files = [path for folder in FOLDERS for path in (ROOT / folder / "_sync").glob("*.py")]
    there = {path: path.read_text(encoding="utf-8") for path in files}
    gone = {path: "" for path, text in there.items() if text.startswith(MARK[:11]) and path not in made}
    return {path: text for path, text in made.items() if there.get(path) != text} | gone


def main(*given: str) -> int:
    differing = stale()
    for path, text in differing.items():
        print(path.relative_to(ROOT))
        if "--check" in given:
            continue
        if text:
            path.write_text(text, encoding="utf-8")
        else:
            path.unlink()
    return 1 if differing and "--check" in given else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
