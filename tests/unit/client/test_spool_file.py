"""The file of a spool: records, torn tails, damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from towline.client.link.spool_file import MAGIC, SpoolFile, spool_folder
from towline.errors import BadRequest, QueueFull, StoreLocked

RECORDS = [b"one", b"", b"three" * 100]


def filled(path: Path) -> Path:
    file = SpoolFile(path / "x.acts", 1 << 20)
    file.append(RECORDS)
    file.close()
    return path / "x.acts"


def test_records_are_there_again(tmp_path: Path) -> None:
    file = SpoolFile(filled(tmp_path), 1 << 20)
    assert list(file.records()) == RECORDS
    with pytest.raises(StoreLocked):
        SpoolFile(file.path, 1 << 20)
    file.clear()
    assert list(file.records()) == []
    file.close()
    assert not file.path.exists()


def test_the_name_of_a_new_file_is_as_durable_as_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut takes a file along whose folder was not synced."""
    synced: list[int] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        fsync(fd)
        synced.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    folder = spool_folder(tmp_path / "new" / "spool")
    assert synced == [(tmp_path / "new").stat().st_ino, tmp_path.stat().st_ino]
    synced.clear()
    path = filled(folder)
    file, place = path.stat().st_ino, folder.stat().st_ino
    assert synced == [file, place, file]
    synced.clear()
    with path.open("ab") as torn:
        torn.write(b"half")
    SpoolFile(path, 1 << 20).close()
    assert synced == [(folder / "x.torn").stat().st_ino, place, file]


@pytest.mark.parametrize("cut", range(1, 8 + 500, 13))
def test_a_torn_tail_is_cut_and_the_file_goes_on(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    path = filled(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    file = SpoolFile(path, 1 << 20)
    assert list(file.records()) == RECORDS[:2]
    assert "torn" in caplog.text
    assert (tmp_path / "x.torn").read_bytes() == data[len(MAGIC) + 8 + 3 + 8 :][:-cut]
    file.append([b"four"])
    file.close()
    again = SpoolFile(path, 1 << 20)
    assert list(again.records()) == [*RECORDS[:2], b"four"]
    again.close()


def test_a_tail_of_the_right_length_with_wrong_bytes_is_torn(tmp_path: Path) -> None:
    path = filled(tmp_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    file = SpoolFile(path, 1 << 20)
    assert list(file.records()) == RECORDS[:2]
    file.close()


def test_damage_in_the_middle_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = filled(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(MAGIC) + 8] ^= 1
    path.write_bytes(data)
    file = SpoolFile(path, 1 << 20)
    assert list(file.records()) == RECORDS[1:]
    assert "damaged" in caplog.text
    file.close()


def test_a_full_spool_takes_all_or_nothing(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path / "x.acts", 40)
    file.append([b"12345678"])
    with pytest.raises(QueueFull, match="40 bytes"):
        file.append([b"a", b"1234567890"])
    assert list(file.records()) == [b"12345678"]
    file.close()


def test_another_kind_of_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.acts").write_bytes(b"something else")
    with pytest.raises(BadRequest, match="not a spool"):
        SpoolFile(tmp_path / "x.acts", 40)
    assert (tmp_path / "x.acts").read_bytes() == b"something else"
