"""What others wrote begins no line of a log, and gives no orders to the terminal that shows it."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys

import pytest

import towline
from tests.broker.process import ROOT, BrokerProcess
from tests.inside.cli import ask, note, print_line, tell
from tests.inside.ground import LineFormatter, harmless, log_to_stderr

PATIENCE_S = 30.0
FORGED = "2026-01-01T00:00:00.000Z ERROR towline.broker: the disk is full"
HOSTILE = f"no\n{FORGED}\r\x1b[2J\x1b]0;owned\x07\x9b1m\u202edne\u2028"
RECORD = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ towline\S*: .*")


def controls(text: str) -> set[str]:
    return {one for one in text if one != "\n" and (ord(one) < 32 or 127 <= ord(one) < 160 or one in "\u202e\u2028")}


def formatted(form: LineFormatter, message: str, *arguments: object, error: BaseException | None = None) -> str:
    info = (type(error), error, error.__traceback__) if error is not None else None
    return form.format(logging.LogRecord("towline.x", logging.ERROR, "x.py", 1, message, arguments, info))


def test_a_reason_in_the_brokers_log_stays_in_its_line() -> None:
    with BrokerProcess() as broker:
        with towline.connect(f"towline://127.0.0.1:{broker.port}", token="shop", timeout=PATIENCE_S) as mq:
            mq.send("orders", b"x")
            with mq.consumer("orders", group="billing") as consumer:
                consumer.pull(1, wait=PATIENCE_S)[0].dead(HOSTILE)
                consumer.flush()
        broker.wait_for_log("went to the dead letters")
        broker.stop()
        assert broker.wait() == 0
        lines = broker.errors.splitlines()
        assert controls(broker.errors) == set()
    assert [line for line in lines if not RECORD.fullmatch(line)] == []
    assert [line for line in lines if line.startswith(FORGED)] == []
    told = next(line for line in lines if "went to the dead letters" in line)
    assert told.endswith(r"\x0d\x1b[2J\x1b]0;owned\x07\x9b1m\u202edne\u2028")


@pytest.mark.parametrize("text", [HOSTILE, "half \ud800 a character", "\x00\x7f\x85\u2066\u200f"])
def test_a_record_is_one_line_that_every_stream_takes(text: str) -> None:
    line = formatted(LineFormatter("%(levelname)s %(name)s: %(message)s"), "client %s: %r", text, text)
    assert line.startswith("ERROR towline.x: client ")
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.encode()


def test_a_traceback_keeps_its_lines_but_none_of_them_looks_like_a_record() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        text = formatted(LineFormatter("%(message)s"), "it broke", error=error)
    first, *rest = text.split("\n")
    assert first == "it broke"
    assert len(rest) > 3
    assert all(line.startswith("  ") for line in rest)
    assert controls(text) == set()


def test_ordinary_text_is_left_as_it_is() -> None:
    text = "größer, 漢字, 🙂 and\ttabs where they are allowed"
    assert harmless(text, "\t") == text
    assert formatted(LineFormatter("%(message)s"), "%s", "größer, 漢字, 🙂") == "größer, 漢字, 🙂"


def test_what_commands_say_of_foreign_text_is_harmless(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    print_line(HOSTILE)
    note(HOSTILE)
    tell(HOSTILE, {}, dry_run=True, output="text")
    assert not ask(HOSTILE)
    out, err = capsys.readouterr()
    assert controls(out + err) == set()
    assert (out.count("\n"), err.count("\n")) == (2, 1)


def test_warnings_of_commands_that_set_up_no_log_are_harmless() -> None:
    script = f"""
import logging, sys
import towline.cli
towline.cli.run = lambda arguments: logging.getLogger("towline.client").warning("broker %s", {HOSTILE!r}) or 0
towline.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert done.stderr.startswith("broker no\\x0a2026")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("force", [True, False])
def test_only_a_log_that_is_forced_takes_the_place_of_another(force: bool) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    other = logging.NullHandler()
    root.handlers[:] = [other]
    try:
        log_to_stderr("warning", LineFormatter("%(message)s"), force=force)
        assert (other in root.handlers) is not force
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
