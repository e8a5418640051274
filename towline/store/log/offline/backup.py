"""Backups of a store's folder: a copy of it in `store/`, and beside that `manifest.json`, which is written last.

Sealed segments and their indexes never change, so on one file system they are linked instead of copied. All else is
copied: the segment that is being written up to where the log ended when the documents had been copied.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from towline.errors import BadRequest, NotFound, StoreDamaged, StoreFailed
from towline.files import folder_mode, make_folder, open_private
from towline.store.log.format.folder import check_format, is_secret
from towline.store.log.format.index import load_directory
from towline.store.log.format.segment import index_path, list_folder, log_path
from towline.store.log.write.disk import REAL

__all__ = [
    "BackupFile",
    "Manifest",
    "copy_documents",
    "copy_log",
    "digests",
    "lay_out",
    "new_backup",
    "read_manifest",
    "restore",
    "verify",
    "write_manifest",
]

MANIFEST: Final = "manifest.json"
STORE: Final = "store"
PARTIAL: Final = "store.partial"
UNFINISHED: Final = "unfinished-restore"
"""A folder with this file in it, and without `format`, is refused by a broker."""
VERSION: Final = 1
PIECE: Final = 4 << 20
AUDIT_TRIES: Final = 10
_PATH = re.compile(r"format|audit(-\d{12})?\.jsonl|config/[A-Za-z0-9][A-Za-z0-9.-]{0,199}|log/\d{20}\.(log|idx|key)")
_NAMED = re.compile(r".+-\d+\.bin")
"""Documents that another one names. They are copied behind it: when that is saved anew meanwhile, those that it named
before are still there, while those that it names then were not there before."""
_NO_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})

Step = Callable[[int], None]
"""Called with the number of bytes that are done."""


class BackupFile(msgspec.Struct, frozen=True):
    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    at_us: int
    """The end of the log there."""
    segment: int
    position: int
    bytes: int
    linked: int
    """How many of its files are links to those of the store."""
    holdings: dict[str, Any]
    files: list[BackupFile]


# Making


@contextmanager
def new_backup(target: Path) -> Iterator[Path]:
    """An empty folder to copy a store into. It gets its name when all went well, and is removed if not."""
    made = not target.exists()
    _refuse_full(target)
    partial = target / PARTIAL
    with _told(target):
        make_folder(target)
        for folder in (partial, partial / "config", partial / "log"):
            folder.mkdir(mode=0o700)
    try:
        yield partial
        with _told(target):
            for folder in (partial / "config", partial / "log", partial):
                REAL.sync_folder(folder)
            partial.rename(target / STORE)
            REAL.sync_folder(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if made and not any(target.iterdir()):
            target.rmdir()
        raise


def copy_documents(store: Path, partial: Path) -> None:
    """Everything but the log, each file as it is now. It comes first: the log may be ahead of documents, never they of
    it."""
    with _told(store):
        if check_format(store) is None:
            raise NotFound(f"{store} is not the folder of a log store")
        _copy(store / "format", partial / "format")
        for named in (False, True):
            for name in sorted(os.listdir(store / "config")):
                if not name.startswith(".") and bool(_NAMED.fullmatch(name)) == named:
                    _copy(store / "config" / name, partial / "config" / name)
        _copy_audit(store, partial)


def _copy_audit(store: Path, partial: Path) -> None:
    """A file of the audit log may be renamed meanwhile, and begun anew: then they are listed again."""
    audit, older = store / "audit.jsonl", sorted(store.glob("audit-*.jsonl"))
    for _ in range(AUDIT_TRIES):
        for path in older:
            with suppress(FileNotFoundError):  # it was too old
                if not (partial / path.name).exists():
                    _copy(path, partial / path.name)
        (partial / audit.name).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            _copy(audit, partial / audit.name, size=audit.read_bytes().rfind(b"\n") + 1)
        if (now := sorted(store.glob("audit-*.jsonl"))) == older:
            break
        older = now


def copy_log(store: Path, partial: Path, end: tuple[int, int] | None, step: Step, *, link: bool = True) -> int:
    """Copy the log up to its `end`, a segment and a position; without one, all that is there. Returns how many files
    are links."""
    folder, into, done, linked = store / "log", partial / "log", 0, 0
    with _told(store):
        logs, indexes, _ = list_folder(folder)
        last = end[0] if end is not None else max(logs, default=0)
        for number in sorted({*logs, *indexes}):
            sealed = is_sealed(folder, number) if number in logs else True
            if number > last or (number == last and end is not None):
                continue
            for path in (log_path(folder, number), index_path(folder, number), _key_path(folder, number)):
                if not path.exists():
                    continue
                if link and sealed and _link(path, into / path.name):
                    linked += 1
                else:
                    _copy(path, into / path.name, step=_behind(step, done))
                done += (into / path.name).stat().st_size
                step(done)
        if end is not None and end[1]:
            path = log_path(folder, end[0])
            _copy(path, into / path.name, size=end[1], step=_behind(step, done))
            if (into / path.name).stat().st_size != end[1]:
                raise StoreFailed(f"{path} is shorter than the {end[1]} bytes that the broker has written to it")
    return linked


def digests(folder: Path, step: Step) -> list[BackupFile]:
    """Size and checksum of every file, read from the disk."""
    found, done = [], 0
    with _told(folder):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest, size = _digest(path, _behind(step, done))
            found.append(BackupFile(path.relative_to(folder).as_posix(), size, digest))
            done += size
    return found


def write_manifest(target: Path, manifest: Manifest) -> None:
    """The manifest makes it a backup."""
    with _told(target):
        document = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
        REAL.replace(target / MANIFEST, [document])


# Verify and restore


def read_manifest(target: Path) -> Manifest:
    path = target / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        unfinished = (target / PARTIAL).exists() or (target / STORE).exists()
        what = "the backup was not finished; make it anew" if unfinished else "this is no backup"
        raise NotFound(f"there is no {path}: {what}") from None
    except OSError as error:
        raise StoreFailed(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"{path} is damaged: {error}. Use another backup") from None
    if manifest.version > VERSION:
        raise BadRequest(f"{path} has version {manifest.version}; this version of Towline knows {VERSION}")
    for file in manifest.files:
        if not _PATH.fullmatch(file.path):
            raise StoreDamaged(f"{path} names {file.path[:80]!r}, which is no file of a store")
    return manifest


def verify(target: Path, manifest: Manifest, step: Step) -> None:
    """Read every byte; raises `StoreDamaged` with the first file that differs from the manifest."""
    done = 0
    for file in manifest.files:
        path = target / STORE / file.path
        with _told(target):
            try:
                digest, size = _digest(path, _behind(step, done))
            except FileNotFoundError:
                raise StoreDamaged(f"{path} is missing") from None
        _compare(path, file, digest, size)
        done += size


def restore(target: Path, manifest: Manifest, store: Path, changed: Mapping[str, bytes], step: Step) -> None:
    """Copy a backup into an empty folder, checking every byte; `changed` are documents to be written instead. Until all
    of it is there, no broker starts on it."""
    _refuse_full(store)
    done = 0
    with _told(store):
        for folder in (store, store / "config", store / "log", store / "torn"):
            if folder != store:
                folder.mkdir(mode=folder_mode(store), exist_ok=True)
            else:
                make_folder(store)
                REAL.replace(
                    store / UNFINISHED, [b"this restore was not finished: empty the folder, and restore anew\n"]
                )
        for file in sorted(manifest.files, key=lambda file: file.path == "format"):
            source, path = target / STORE / file.path, store / file.path
            if file.path == "format":
                for folder in (store / "config", store / "log", store):
                    REAL.sync_folder(folder)
                (store / UNFINISHED).unlink()
            if file.path in changed:
                REAL.replace(path, [changed[file.path]], secret=is_secret(path))
                continue
            try:
                digest = _copy(source, path, step=_behind(step, done))
            except FileNotFoundError:
                raise StoreDamaged(f"{source} is missing") from None
            _compare(source, file, digest, path.stat().st_size)
            done += file.size
        REAL.sync_folder(store)


def lay_out(store: Path, place: Path) -> None:
    """Another folder with the contents of a store: symbolic links to files that no start changes, copies of the
    rest."""
    with _told(store):
        for folder in (place, place / "config", place / "log"):
            folder.mkdir(mode=0o700)
        _copy(store / "format", place / "format")
        for path in (store / "config").iterdir():
            _copy(path, place / "config" / path.name)
        logs, indexes, _ = list_folder(store / "log")
        for number in {*logs, *indexes}:
            keep = number not in logs or is_sealed(store / "log", number)
            for path in (log_path(store / "log", number), index_path(store / "log", number)):
                if path.exists() and keep:
                    (place / "log" / path.name).symlink_to(path.absolute())
                elif path.exists():
                    _copy(path, place / "log" / path.name)


def is_sealed(folder: Path, number: int) -> bool:
    """Whether a segment has a good index, so that neither it nor its index is written to any more."""
    directory = load_directory(index_path(folder, number))
    size = log_path(folder, number).stat().st_size
    return directory is not None and (directory.segment, directory.log_length) == (number, size)


# Files


def _key_path(folder: Path, number: int) -> Path:
    return log_path(folder, number).with_suffix(".key")


def _refuse_full(folder: Path) -> None:
    try:
        names = [name for name in os.listdir(folder) if name != "lost+found"]
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadRequest(f"{folder} cannot be used: {error.strerror}") from None
    if names:
        raise BadRequest(f"{folder} is not empty ({min(names)}): choose a new or empty folder")


def _link(source: Path, path: Path) -> bool:
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def _copy(source: Path, path: Path, *, size: int | None = None, step: Step = lambda more: None) -> str:
    """Copy a file, or its first `size` bytes, durably. Returns its checksum."""
    digest, done = hashlib.sha256(), 0
    with source.open("rb", buffering=0) as reader:
        descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, secret=is_secret(path))
        with os.fdopen(descriptor, "wb") as writer:
            while piece := reader.read(PIECE if size is None else min(PIECE, size - done)):
                writer.write(piece)
                digest.update(piece)
                done += len(piece)
                step(done)
            writer.flush()
            os.fsync(descriptor)
    return digest.hexdigest()


def _behind(step: Step, done: int) -> Step:
    return lambda more: step(done + more)


def _digest(path: Path, step: Step) -> tuple[str, int]:
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as reader:
        while piece := reader.read(PIECE):
            digest.update(piece)
            done += len(piece)
            step(done)
    return digest.hexdigest(), done


def _compare(path: Path, file: BackupFile, digest: str, size: int) -> None:
    if size != file.size:
        raise StoreDamaged(f"{path} has {size:,} bytes; the manifest says {file.size:,}. Use another backup")
    if digest != file.sha256:
        raise StoreDamaged(f"{path} is damaged: its checksum is not the manifest's. Use another backup")


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """An error of the disk, as an error of ours."""
    try:
        yield
    except OSError as error:
        name = error.filename or folder
        raise StoreFailed(f"{name}: {error.strerror or error}") from error
