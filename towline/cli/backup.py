"""`towline backup` and `towline restore`: a copy of a broker's folder, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from towline.cli.options import Connection, Usage
from towline.cli.output import Output, note, print_json, print_pairs, progress, size, stamp
from towline.clock import SYSTEM
from towline.errors import NotFound, StoreFailed, StoreLocked, TowlineError

if TYPE_CHECKING:
    from towline.broker.retention.backup import Holdings
    from towline.client._sync.client import Client
    from towline.store.log.offline.backup import Manifest
    from towline.store.log.write.lock import FolderLock

__all__ = ["backup", "restore"]

Target = Annotated[Path, Parameter(help="The folder of the backup.")]
Store = Annotated[str, Parameter(help="The broker's folder, as given to it in `--store file:DIR`.", show_default=False)]


def backup(
    target: Target,
    /,
    *,
    store: Store = "",
    copy: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Copy every file, also where a link would do."),
    ] = False,
    output: Output = "text",
    connection: Connection = Connection(),  # noqa: B008
) -> None:
    """Make a backup of a broker that keeps its messages in a folder, running or not, into a new folder.

        towline backup /backup/monday -u towline://127.0.0.1:7400
        towline backup /backup/monday --store file:/var/lib/towline

    Run it on the broker's machine, as the broker's user: the broker holds its log for as long as the backup takes, and
    this command reads the folder. All that was acknowledged before it began is in it. Files of the log that do not
    change any more are linked where the backup is on the same file system (unless you say `--copy`), which takes no
    room; damage to such a file is then damage to both. A broker with security asks for admin rights.
    """
    folder = _folder(store or connection.url) if store or connection.url.startswith("file:") else None
    lock = _lock(folder, running=not connection.url.startswith("file:")) if folder is not None else None
    if folder is not None and lock is not None:
        try:
            manifest = _make(target, folder, None, link=not copy)
        finally:
            lock.release()
    else:
        with connection.connect() as client:
            manifest = _make(target, folder, client, link=not copy)
    _tell(target, manifest, output)


def restore(
    target: Target,
    /,
    *,
    store: Store = "",
    check: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Change nothing; say whether a broker would start on it."),
    ] = False,
    output: Output = "text",
) -> int:
    """Bring a backup back into a new or empty folder, on which a broker can then be started; or check it.

        towline restore /backup/monday --check
        towline restore /backup/monday --store file:/var/lib/towline

    Every byte is compared with the backup's manifest. `--check` also lets a broker come back on it, out of sight, and
    ends with 1 if that would report lost messages.
    """
    import asyncio

    from towline.broker.retention.backup import holdings_of, renewed_epoch
    from towline.store.log.offline import backup as files

    if bool(store) == check:
        raise Usage("say either --check, or where to restore it: --store file:DIR")
    manifest = files.read_manifest(target)
    if check:
        with progress("reading", manifest.bytes, "bytes") as step:
            files.verify(target, manifest, step)
        found = asyncio.run(holdings_of(target / files.STORE))
        _tell(target, manifest, output, found)
        return 1 if found.problems else 0
    folder = _folder(store)
    epoch = target / files.STORE / "config" / "epoch.json"
    changed = {"config/epoch.json": renewed_epoch(epoch.read_bytes())} if epoch.exists() else {}
    with progress("restoring", manifest.bytes, "bytes") as step:
        files.restore(target, manifest, folder, changed, step)
    _tell(target, manifest, output)
    note(f"restored into {folder}: start the broker with --store file:{folder}")
    return 0


def _make(target: Path, folder: Path | None, client: Client | None, *, link: bool) -> Manifest:
    import asyncio

    from towline.broker.retention.backup import holdings_of
    from towline.store.log.offline import backup as files

    with files.new_backup(target) as partial:
        if client is None:
            assert folder is not None, "it is locked"
            files.copy_documents(folder, partial)
            at_us, end = SYSTEM.now_us(), None
            with progress("copying", _bytes(folder), "bytes") as step:
                linked = files.copy_log(folder, partial, None, step, link=link)
        else:
            with _held(client, folder) as (held_folder, hold):
                files.copy_documents(held_folder, partial)
                held = client.hold_backup(hold.ticket)
                at_us, end = held.at_us, (held.segment, held.position)
                with progress("copying", _bytes(held_folder), "bytes") as step:
                    linked = files.copy_log(held_folder, partial, end, hold.while_telling(step), link=link)
    kept = target / files.STORE
    with progress("reading", _bytes(kept), "bytes") as step:
        listed = files.digests(kept, step)
    holdings = asyncio.run(holdings_of(kept))
    last = max((file for file in listed if file.path.endswith(".log")), key=lambda file: file.path, default=None)
    segment, position = end or ((int(Path(last.path).stem), last.size) if last is not None else (0, 0))
    manifest = files.Manifest(
        at_us=at_us,
        segment=segment,
        position=position,
        bytes=sum(file.size for file in listed),
        linked=linked,
        holdings=msgspec.structs.asdict(holdings),
        files=listed,
    )
    files.write_manifest(target, manifest)
    return manifest


class _Hold:
    """The broker's lease on its log, renewed while work goes on."""

    def __init__(self, client: Client, ticket: str, lease_s: float) -> None:
        self.ticket = ticket
        self._client, self._lease_s = client, lease_s
        self._renewed_s = SYSTEM.steady_s()

    def while_telling(self, step: Callable[[int], None]) -> Callable[[int], None]:
        def told(done: int) -> None:
            step(done)
            if SYSTEM.steady_s() - self._renewed_s > self._lease_s / 4:
                self._client.hold_backup(self.ticket)
                self._renewed_s = SYSTEM.steady_s()

        return told


@contextmanager
def _held(client: Client, folder: Path | None) -> Iterator[tuple[Path, _Hold]]:
    """The broker keeps its log. If it could not until the end, the backup is none."""
    begun = client.begin_backup()
    path = folder or Path(begun.folder)
    try:
        if _inode(path / "lock") != begun.lock:
            raise Usage(
                f"{path} is not the broker's folder, or cannot be seen from here: run this on the broker's machine, as "
                "its user; if the folder has another path here, give it with --store file:DIR"
            )
        yield path, _Hold(client, begun.ticket, begun.lease_s)
    except BaseException:
        try:
            client.hold_backup(begun.ticket, done=True)
        except TowlineError as error:
            note(f"the broker holds its log for {begun.lease_s:.0f} s more: {error}")
        raise
    client.hold_backup(begun.ticket, done=True)


def _lock(folder: Path, *, running: bool) -> FolderLock | None:
    """The folder is ours; None if it is that of a broker, which is asked if it can be."""
    from towline.store.log.format.folder import check_format
    from towline.store.log.write.lock import FolderLock

    if check_format(folder) is None:
        raise NotFound(f"{folder} is not the folder of a log store")
    try:
        return FolderLock(folder)
    except StoreLocked as error:
        if running:
            return None
        raise StoreLocked(f"{error}; or give the address of its broker with -u") from None
    except OSError as error:
        raise StoreFailed(f"{folder}: {error.strerror}") from None


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1


def _folder(store: str) -> Path:
    scheme, colon, rest = store.partition(":")
    if scheme == "mysql":
        raise Usage("the messages are in a database: back that up instead, all of it at one point in time")
    if not colon or scheme != "file" or not rest:
        raise Usage(f"{store!r}: write file:DIR, as the broker was given it with --store")
    return Path(rest).expanduser().absolute()


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _tell(target: Path, manifest: Manifest, output: str, found: Holdings | None = None) -> None:
    """The contents of a backup, by its manifest, or as a broker `found` them now."""
    facts: dict[str, Any] = manifest.holdings if found is None else msgspec.structs.asdict(found)
    problems = facts.get("problems", [])
    for problem in problems:
        note(f"a start on it reports: {problem}")
    if output == "json":
        about = {"backup": str(target), "at": stamp(manifest.at_us), "segment": manifest.segment}
        sizes = {"position": manifest.position, "bytes": manifest.bytes, "files": len(manifest.files)}
        print_json(about | sizes | {"linked": manifest.linked} | facts)
        return
    print_pairs(
        [
            ("backup", target),
            ("as of", stamp(manifest.at_us)),
            ("log ends at", f"segment {manifest.segment}, byte {manifest.position:,}"),
            *((name, f"{facts[name]:,}") for name in ("topics", "messages", "delayed", "prepared", "groups")),
            ("size", f"{size(manifest.bytes)} in {len(manifest.files):,} files, {manifest.linked:,} of them linked"),
            ("problems", f"{len(problems):,}" if problems else "none"),
        ]
    )
