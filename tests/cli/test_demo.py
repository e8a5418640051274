"""The demo and the benchmarks run, and say what they found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.cli.conftest import ROOT
from tests.parts import need


def python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580, check=False)


@pytest.mark.slow
def test_in_the_demo_nothing_is_lost() -> None:
    need("java")
    done = python("-m", "towline.demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing was lost." in done.stdout
    assert "kill -9" in done.stdout
    assert "✗" not in done.stdout
    for promise in ("what is urgent comes first", "a transaction is whole, or absent", "no order for later came early"):
        assert f"✓ {promise}" in done.stdout


def test_a_benchmark_gives_figures_with_targets(tmp_path: Path) -> None:
    small = ("--seconds", "0.2", "--repeats", "1", "--backlog", "20000", "--dir", tmp_path / "bench")
    done = python("-m", "bench", "machine", "produce", "backlog", *small, "-o", "json")
    assert done.returncode == 0, done.stderr
    facts = msgspec.json.decode(done.stdout)
    assert {"cores", "kernel", "python", "figures"} <= facts.keys()
    figures = {figure["name"]: figure for figure in facts["figures"]}
    assert figures["loopback"]["value"] > 0
    assert figures["send_many, os"]["ratio"] == pytest.approx(figures["send_many, os"]["value"] / 1_000_000)
    assert figures["restart after kill -9, 0.02 M messages"]["unit"] == "s"
    assert list((tmp_path / "bench").iterdir()) == []


def test_an_unknown_scenario_is_a_wrong_call() -> None:
    done = python("-m", "bench", "nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr
