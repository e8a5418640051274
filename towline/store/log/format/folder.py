"""The folder of a store: its files, its permissions, its version of the format."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from towline.errors import StoreFailed
from towline.files import file_mode, folder_mode, make_folder, narrow
from towline.format import FORMAT, NOTE, refuse_newer, writer_in
from towline.store.log.write.disk import DiskIo

__all__ = ["check_format", "close_to_others", "is_secret", "prepare_folder", "raise_format", "sweep", "writer_of"]

log = logging.getLogger("towline.store")

_OURS = frozenset({"audit.jsonl", "config", "format", "lock", "log", "lost+found", "setup-secret", "torn"})
"""Names in a folder that does not state yet that it is a store; the file system may put one of them there."""
_FOLDERS = ("log", "config", "torn")
_SECRETS = frozenset({"access.json", "alarms.json", "lock", "setup-secret", "shared-alarms.json"})
"""Files for the broker alone, also where a group may read along: hashes of secrets, addresses of webhooks."""
_OUR_LOG = re.compile(r"\.?\d{20}\..*")


def prepare_folder(root: Path, io: DiskIo) -> None:
    """Make the folder, if it is not there, and refuse one that a newer version has written, or another program."""
    if root.exists() and check_format(root) is None:
        _refuse_foreign(root)
    made = make_folder(root)
    for name in _FOLDERS:
        (root / name).mkdir(mode=folder_mode(root), exist_ok=True)
    for folder in made:
        io.sync_folder(folder.parent)
    if check_format(root) is None:
        _state_format(root, io)


def raise_format(root: Path, io: DiskIo) -> None:
    """Once the folder is ours: state the number that is written from now on."""
    version = check_format(root)
    if version is not None and version < FORMAT:
        log.warning(
            "%s is upgraded from format %d to %d: no version of Towline before this one can open it any more",
            *(root, version, FORMAT),
        )
        _state_format(root, io)


def _state_format(root: Path, io: DiskIo) -> None:
    io.replace(root / "format", [f"towline log {FORMAT}\n".encode()])


def is_secret(path: Path) -> bool:
    return path.name.removesuffix(".bak") in _SECRETS


def close_to_others(root: Path) -> None:
    """Take permissions from others that an earlier version, or whoever copied the folder, left them. Those of the
    folder itself are its owner's choice: its contents are closed also where it is open."""
    mended, left = 0, list[Path]()
    ours = sorted(_OURS - {"lost+found"})
    for folder, names in ((root, ours), *((root / name, None) for name in _FOLDERS)):
        for path in [folder / name for name in (names or os.listdir(folder))]:
            if folder == root and path.name in _FOLDERS:
                mode = folder_mode(root)
            else:
                mode = 0o600 if is_secret(path) else file_mode(folder)
            try:
                mended += narrow(path, mode)
            except FileNotFoundError:
                continue
            except PermissionError:
                left.append(path)
    if mended:
        log.warning("%s: %d files and folders in it were open to other users, and are so no longer", root, mended)
    if left:
        log.warning(
            "%s: %d files are open to other users and cannot be closed, for they are not this user's (%s): chown them",
            *(root, len(left), left[0]),
        )


def _refuse_foreign(root: Path) -> None:
    names = [name for name in os.listdir(root) if name not in _OURS and not name.startswith(".")]
    if (root / "log").is_dir():
        names += [f"log/{name}" for name in os.listdir(root / "log") if not _OUR_LOG.fullmatch(name)]
    if names:
        raise StoreFailed(f"{root} holds something else ({min(names)}), and no log store: choose a new or empty folder")


def sweep(root: Path) -> None:
    """Remove files that a crash in the middle of a replacement left behind."""
    (root / ".format.tmp").unlink(missing_ok=True)
    for name in _FOLDERS:
        for path in (root / name).glob(".*.tmp"):
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
    refuse_newer(str(root), version, writer_of(root) if version > FORMAT else "")
    return version


def writer_of(root: Path) -> str:
    """The version of Towline that wrote to the folder last, if it is stated."""
    try:
        return writer_in((root / "config" / NOTE).read_bytes())
    except OSError:
        return ""
