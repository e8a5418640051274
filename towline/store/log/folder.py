"""The folder of a store: what is in it, and in which version of the format."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import msgspec

from towline.errors import StoreFailed
from towline.format import FORMAT, NOTE, refuse_newer
from towline.store.log.disk import DiskIo

__all__ = ["check_format", "prepare_folder", "raise_format", "sweep"]

log = logging.getLogger("towline.store")

_OURS = frozenset({"audit.jsonl", "config", "format", "lock", "log", "lost+found", "setup-secret", "torn"})
"""What may be in a folder that does not say yet that it is a store; the file system may put one of them there."""
_OUR_LOG = re.compile(r"\.?\d{20}\..*")


def prepare_folder(root: Path, io: DiskIo) -> None:
    """Make the folder, if it is not there, and refuse one that a newer version has written, or another program."""
    made = [folder for folder in (root, *root.parents) if not folder.exists()]
    if not made and check_format(root) is None:
        _refuse_foreign(root)
    if made:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)  # messages are for nobody else's eyes
    for folder in (root, root / "log", root / "config", root / "torn"):
        folder.mkdir(parents=True, exist_ok=True)
    for folder in made:
        io.sync_folder(folder.parent)
    if check_format(root) is None:
        _state_format(root, io)


def raise_format(root: Path, io: DiskIo) -> None:
    """Once the folder is ours: state the number of what is written from now on."""
    version = check_format(root)
    if version is not None and version < FORMAT:
        log.warning(
            "%s is upgraded from format %d to %d: no version of Towline before this one can open it any more",
            *(root, version, FORMAT),
        )
        _state_format(root, io)


def _state_format(root: Path, io: DiskIo) -> None:
    io.replace(root / "format", [f"towline log {FORMAT}\n".encode()])


def _refuse_foreign(root: Path) -> None:
    names = [name for name in os.listdir(root) if name not in _OURS and not name.startswith(".")]
    if (root / "log").is_dir():
        names += [f"log/{name}" for name in os.listdir(root / "log") if not _OUR_LOG.fullmatch(name)]
    if names:
        raise StoreFailed(f"{root} holds something else ({min(names)}), and no log store: choose a new or empty folder")


def sweep(root: Path) -> None:
    """Remove what a crash in the middle of replacing a file left behind."""
    (root / ".format.tmp").unlink(missing_ok=True)
    for folder in (root / "log", root / "config", root / "torn"):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def check_format(root: Path) -> int | None:
    """The version of the format, None if it is not stated."""
    try:
        words = (root / "format").read_text("ascii", "replace").split()
    except FileNotFoundError:
        return None
    if len(words) != 3 or words[:2] != ["towline", "log"] or not words[2].isdigit():
        raise StoreFailed(f"{root / 'format'} does not say 'towline log {FORMAT}': is this the folder of a log store?")
    version = int(words[2])
    refuse_newer(str(root), version, _writer(root) if version > FORMAT else "")
    return version


def _writer(root: Path) -> str:
    """The version of Towline that wrote to the folder last, if it says so."""
    try:
        note = msgspec.json.decode((root / "config" / NOTE).read_bytes(), type=dict[str, int | str])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return str(note.get("towline", ""))
