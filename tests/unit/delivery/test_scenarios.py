"""Delivery does what its scenarios say. With `--rewrite`, what it does is written into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.delivery.scenario import FOLDER, blocks_of, play, written

SCENARIOS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_delivery_does_what_the_scenario_says(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text(encoding="utf-8")
    played = written(play(text))
    if request.config.getoption("--rewrite"):
        path.write_text(played, encoding="utf-8")
    assert played == text


def test_there_is_a_scenario_for_each_subject() -> None:
    assert len(SCENARIOS) >= 12


def test_a_scenario_whose_expectation_is_wrong_is_found() -> None:
    text = (FOLDER / "nack_and_retry.txt").read_text(encoding="utf-8")
    wrong = text.replace("attempt 2", "attempt 1", 1)
    assert wrong != text
    assert written(play(wrong)) != wrong


def test_text_and_blocks_are_the_same() -> None:
    for path in SCENARIOS:
        text = path.read_text(encoding="utf-8")
        assert written(blocks_of(text)) == text
