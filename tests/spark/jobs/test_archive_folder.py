"""Archives on file systems that do not rename over what is there, and do not say what is missing: Hadoop's are such."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from tests.inside.spark import Archive, ArchiveFolder, Entry, Writable, manifest
from tests.spark.jobs.history import NOON
from tests.spark.jobs.process_death import Killed, killed_at
from towline.errors import Conflict, StoreDamaged

URI = "hadoopish:///archive"
STEPS = ("move", "remove", "writing", "remove_folder")


class Hadoopish(fs.FileSystemHandler):  # type: ignore[misc,unused-ignore]
    """A folder with the manners of HDFS behind libhdfs, as they were seen on a real one: see docs/spark.md."""

    def __init__(self, root: Path) -> None:
        self._fs = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def get_type_name(self) -> str:
        return "hadoopish"

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._fs.get_file_info(selector)

    def get_file_info(self, paths: list[str]) -> Any:
        return self._fs.get_file_info(paths)

    def delete_file(self, path: str) -> None:
        self._must(path, there=True)
        self._fs.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self._must(src, there=True)
        self._must(dest, there=False)
        self._fs.move(src, dest)

    def _must(self, path: str, *, there: bool) -> None:
        if (self._fs.get_file_info(path).type != fs.FileType.NotFound) != there:
            raise OSError(errno.EIO, "Input/output error")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._fs.create_dir(path.rpartition("/")[0], recursive=True)
        return self._fs.open_output_stream(path, metadata=metadata)

    def _unused(self, *_: Any) -> None:
        raise NotImplementedError

    # The interface has them, and nobody calls them.
    __eq__ = __ne__ = normalize_path = delete_dir_contents = delete_root_dir_contents = _unused  # type: ignore[assignment]
    copy_file = open_append_stream = _unused
    __hash__ = None  # type: ignore[assignment]

    def create_dir(self, path: str, recursive: bool) -> None:
        self._fs.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._fs.delete_dir(path)

    def open_input_stream(self, path: str) -> Any:
        return self._fs.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self._fs.open_input_file(path)


@pytest.fixture(autouse=True)
def _hadoopish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fs.PyFileSystem(Hadoopish(tmp_path))
    monkeypatch.setattr(ArchiveFolder, "_open_remote", lambda _: (made, "archive"))
    monkeypatch.setattr("tests.inside.spark.archive_folder.LEASE_S", 0.0)


def test_a_document_is_the_old_or_the_new_one_after_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ArchiveFolder(URI)
    assert place.read("some/document") is None
    for step in range(8):
        place.replace("some/document", b"old")
        with suppress(Killed), killed_at(step, monkeypatch, STEPS):
            place.replace("some/document", b"new")
        assert place.read("some/document") == (b"old" if step < 4 else b"new"), step
        place.replace("some/document", b"newest")
        assert place.read("some/document") == b"newest"


def test_what_is_missing_is_not_moved_and_need_not_be_removed() -> None:
    place = ArchiveFolder(URI)
    assert not place.move("missing", "elsewhere")
    place.remove(["missing"])
    place.remove_folder("missing")
    assert place.sizes() == {}


def add(shelf: Writable, number: int) -> None:
    name = f"_tmp/{number}.parquet"
    with shelf.place.writing(name) as sink:
        sink.write(b"%d" % number)
    path = manifest.file_name("lane/orders/middle", "2026-05-01", number, number + 1)
    entry = Entry("lane/orders/middle", number, number + 1, path, 1, 1, NOON, NOON, "")
    shelf.commit(NOON, [(name, entry)], positions={"lane/orders/middle": number + 1})


def test_a_manifest_is_whole_wherever_its_writer_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "FOLD_AT", 3)
    with Writable.opened(URI) as shelf:
        add(shelf, 0)
    done, step = 1, 0
    while True:
        survived = False
        with suppress(Killed), killed_at(step, monkeypatch, STEPS), Writable.opened(URI) as shelf:
            for _ in range(3):
                add(shelf, shelf.positions["lane/orders/middle"])
            survived = True
        with Writable.opened(URI) as shelf:
            at = shelf.positions["lane/orders/middle"]
            assert at >= done, "what was committed stays"
            assert sorted(shelf.place.sizes("messages")) == sorted(entry.path for entry in shelf.files())
            assert [entry.first for entry in shelf.files()] == list(range(at))
            done = at
        if survived:
            break
        step += 1
    assert step > 30
    assert "_manifest/base.json" in ArchiveFolder(URI).sizes("_manifest")


def test_commits_that_are_folded_while_they_are_read_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "FOLD_AT", 3)
    with Writable.opened(URI) as shelf:
        for number in range(2):
            add(shelf, number)
        read, folded = ArchiveFolder.read, False

        def late(self: ArchiveFolder, name: str) -> bytes | None:
            nonlocal folded
            data = read(self, name)
            if name == manifest.BASE and not folded:
                folded = True
                add(shelf, 2)
            return data

        monkeypatch.setattr(ArchiveFolder, "read", late)
        assert Archive.open(URI).positions == {"lane/orders/middle": 3}
        shelf.place.remove(["_manifest/base.json"])
        add(shelf, 3)
        with pytest.raises(StoreDamaged, match="commit 1 of the manifest is missing"):
            Archive.open(URI)


def test_a_lease_is_lost_to_whoever_takes_it_and_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ArchiveFolder(URI)
    with place.lock("lock", "writes") as renew:
        with place.lock("lock", "writes"):  # the lease is over at once here
            monkeypatch.setattr("tests.inside.spark.archive_folder.LEASE_S", 120.0)
            with pytest.raises(Conflict, match=r"another job .* writes: stop it"), place.lock("lock", "writes"):
                pass
            with pytest.raises(Conflict, match="another job took over"):
                renew()
        assert place.read("lock") is None
