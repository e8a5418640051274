"""A message's body, as it can be shown: JSON, text or hex, never more than a screen or two, never as anything else."""

from __future__ import annotations

import json
from typing import Final, Literal

from towline.console.number_format import plain, size

__all__ = ["HEAD_BYTES", "SHOWN_BYTES", "Form", "guess", "preview", "render"]

Form = Literal["json", "text", "hex"]
SHOWN_BYTES: Final = 32 << 10
HEAD_BYTES: Final = SHOWN_BYTES + 1
"""All that is looked at of a body; one that is longer than what is shown is longer still."""
PREVIEW: Final = 120
_HEX_BYTES: Final = 4 << 10
_DEEP: Final = 60


def guess(body: bytes) -> Form:
    head = body[:SHOWN_BYTES]
    if _as_json(body) is not None:
        return "json"
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character may have been cut in two where we cut.
        if len(body) == len(head) or error.start < len(head) - 4:
            return "hex"
        text = head[: error.start].decode("utf-8")
    strange = sum(letter < " " and letter not in "\t\n\r" for letter in text)
    return "hex" if strange * 10 > len(text) else "text"


def render(body: bytes, form: Form, length: int) -> tuple[str, str]:
    """The text to show, and a note about the part that is left out of a body of this length; `HEAD_BYTES` of it do."""
    if form == "hex":
        return _hex(body[:_HEX_BYTES]), _left(length, _HEX_BYTES)
    if form == "json":
        pretty = _as_json(body)
        if pretty is not None:
            return plain(pretty[:SHOWN_BYTES]), "" if len(pretty) <= SHOWN_BYTES else "cut: download it to see all"
    return plain(body[:SHOWN_BYTES].decode("utf-8", "replace")), _left(length, SHOWN_BYTES)


def preview(body: bytes) -> str:
    """One line of it."""
    try:
        text = (
            body[: PREVIEW * 4].decode("utf-8")
            if len(body) <= PREVIEW * 4
            else body[:PREVIEW].decode("utf-8", "ignore")
        )
    except UnicodeDecodeError:
        return "0x" + body[: PREVIEW // 2].hex()
    line = plain(" ".join(text.split()))
    return line if len(line) <= PREVIEW else line[:PREVIEW] + "…"


def _as_json(body: bytes) -> str | None:
    if len(body) > SHOWN_BYTES or body[:1] not in (b"{", b"["):
        return None
    depth = deepest = 0
    for byte in body:
        if byte in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"}]":
            depth -= 1
    if deepest > _DEEP:
        return None
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _hex(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {text}")
    return "\n".join(lines) or "(empty)"


def _left(whole: int, shown: int) -> str:
    return f"{size(shown)} of {size(whole)} are shown: download it to see all" if whole > shown else ""
