"""The soak benchmark: it runs, ends, and tells whose a stall was."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.soak.record import Record, kinds_of, slope_per_min
from bench.soak.task import Note, Span
from tests.eventually import eventually
from tests.house_rules import ROOT


def test_a_stall_is_the_machines_only_if_the_loop_was_not_busy() -> None:
    record = Record(0.0, 100.0)
    busy, unscheduled, asleep = Span(1.0, 100.0, 10.0, 80.0), Span(2.0, 100.0, 60.0, 30.0), Span(3.0, 100.0, 0.0, 0.0)
    unsynced = Span(4.0, 100.0)
    record.note(Note(role="bystander", spans=[busy, unscheduled, asleep, unsynced]), 50.0)
    record.note(Note(role="disk", spans=[Span(0.5, 10.0), Span(4.02, 90.0), Span(4.2, 50.0)]), 50.0)
    assert [record.is_the_machines(span) for span in record.stalls("bystander")] == [False, True, False, True]


def test_growth_is_that_of_the_second_half() -> None:
    points = [(float(second), 100.0 + second * 5.0) for second in range(60)]
    points += [(60.0 + second, 400.0 + second / 60) for second in range(60)]
    assert slope_per_min(points) == pytest.approx(1.0)
    assert slope_per_min([(1.0, 5.0)]) == 0.0


def test_lines_of_a_log_are_counted_by_kind() -> None:
    log = "".join(
        f"2026-01-01T00:00:0{at}.123Z WARNING towline.broker: group g-{at} on topic t: 1{at} message(s) are gone\n"
        for at in range(3)
    )
    assert kinds_of(log + "no line of a log") == {("WARNING", "group # on topic t: # message(s) are gone"): 3}


def test_the_longest_steps_of_background_work_are_kept() -> None:
    record = Record(0.0, 100.0)
    for milliseconds in (3, 30, 5):
        record.note_metrics(f'# HELP x y\ntowline_background_step_seconds{{work="maintenance"}} 0.{milliseconds:03}\n')
    assert record.steps_s == {"maintenance": 0.03}


def soak(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench", "soak", "--groups", "2", "--topics", "2", "--dir", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.slow
def test_a_short_soak_measures_the_bystander_memory_and_disk(tmp_path: Path) -> None:
    with soak(tmp_path, "--minutes", "0.3", "-o", "json") as process:
        out, said = process.communicate()
    found = msgspec.json.decode(out)
    assert found["failed"] == {}, said
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert figures["bystander: p50"]["value"] > 0
    assert len(figures["memory at the end"]["turns"]) == 10
    assert figures["load"]["value"] > 100
    assert figures["background: maintenance"]["value"] > 0
    assert "100,000 producers have sent" in said, "their table grows no more"
    assert not [name for name in figures if name.startswith(("failures of", "error lines"))], figures
    assert "by tenths of the run" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_soak_that_is_interrupted_leaves_no_process_behind(tmp_path: Path, by: signal.Signals) -> None:
    with soak(tmp_path, "--minutes", "10") as process:
        eventually(lambda: len(children_of(process.pid)) > 10)
        children = children_of(process.pid)
        process.send_signal(by)
        process.communicate()
    eventually(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    assert list(tmp_path.iterdir()) == []


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
