"""`towline spark …`, as users call it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import towline
from tests.broker.access.declared import declared
from tests.broker.process import BrokerProcess
from tests.inside.spark import why_not
from tests.spark.session import PATIENCE_S, environment
from towline import cli

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[Any]:
    """What a command says as JSON, one object a line."""
    assert cli.run([*arguments, "-o", "json"]) == code, capsys.readouterr().err
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_whole_pipeline(
    spark: SparkSession,
    broker: BrokerProcess,
    mq: towline.Client,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within the session that is there: the commands use it, and leave it open."""
    url = f"towline://127.0.0.1:{broker.port}"
    mq.send_many("orders", [b"%d" % n for n in range(100)], keys=[f"key-{n % 10}" for n in range(100)])
    with mq.consumer("orders", group="billing", name="ann") as consumer:
        for message in consumer.pull(max_messages=60, wait=60):
            if message.seq == 7:
                message.dead("no sevens")
            else:
                message.ack()
    shelf = str(tmp_path / "archive")
    path = ("--path", str(tmp_path / "data"))
    [done] = told(capsys, "spark", "archive", shelf, *path, "--hold", "archive")
    assert done["rows"] > 100
    hold = json.loads((tmp_path / "data/config/hold-archive.json").read_text())
    assert hold["positions"]["lane/orders/middle"] == 100
    assert [
        row["rows"] for row in told(capsys, "spark", "archive", "ls", shelf) if row["stream"].startswith("lane")
    ] == [100]
    [verified] = told(capsys, "spark", "archive", "verify", shelf, "--url", url)
    assert (verified["sound"], verified["behind"]) == (True, 0)

    rows = told(capsys, "spark", "trace", str(tmp_path / "trace"), "--archive", shelf)
    assert {row["status"]: row["count"] for row in rows} == {"DEAD": 1, "NEW": 40, "SUCCESS": 59}
    [found] = told(capsys, "spark", "report", str(tmp_path / "report"), "--url", url, "--tables", "parquet")
    assert found["groups"][0]["success"] == 59
    assert (tmp_path / "report/report.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "report/hours.parquet").exists()
    [reconciled] = told(capsys, "spark", "reconcile", "--archive", shelf, "--late", "1h", code=1)
    assert [finding["what"] for finding in reconciled["findings"]] == ["dead"]

    again = ("spark", "replay", shelf, "--to-topic", "again", "--key", "key-3", "--url", url, "--job", "mine")
    assert [told(capsys, *again)[0]["rows"] for _ in range(2)] == [10, 0]
    assert mq.topic("again").lanes[1].end == 10
    monkeypatch.setenv("TOWLINE_URL", url)
    assert cli.run(["spark", "reconcile", "--topic", "again"]) == 2, "nobody has consumed them: nothing can be said"
    assert "were given to any group" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["archive", "ARCHIVE", "--path", "/nowhere"], 1, "is not the folder of a log store"),
        (["archive", "ARCHIVE", "--topic", "A B", "--path", "/x"], 2, "topic"),
        (["archive", "ARCHIVE", "--hold", "x/y", "--path", "/x"], 2, "hold 'x/y'"),
        (["archive", "ls", "/nowhere"], 1, "is not an archive"),
        (["archive", "nosuch://x/y", "--path", "/x"], 1, "this file system cannot be used"),
        (["replay", "/nowhere", "--url", "towline://127.0.0.1:1"], 1, "is not an archive"),
        (["trace", "OUT", "--from", "yesterday"], 2, "is not a time"),
        (["reconcile", "--archive", "/nowhere"], 2, "is not an archive"),
        (["reconcile", "--url", "towline://127.0.0.1:1", "--patience", "100ms"], 2, "127.0.0.1:1"),
    ],
)
def test_mistakes_are_named_in_one_line(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    words = [str(tmp_path / word.lower()) if word in ("ARCHIVE", "OUT") else word for word in arguments]
    assert cli.run(["spark", *words]) == code
    error = capsys.readouterr().err
    assert said in error
    assert len([line for line in error.splitlines() if line.startswith("error:")]) == 1


def test_what_a_broker_refuses_is_named_in_one_line(
    spark: SparkSession,
    broker: BrokerProcess,
    mq: towline.Client,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mq.send("orders", b"x")
    secret = tmp_path / "secret"
    secret.write_text("another one")
    secret.chmod(0o600)
    url, out = f"towline://127.0.0.1:{broker.port}", str(tmp_path / "out")
    with BrokerProcess(**declared(tmp_path, good="a-secret-that-nobody-guesses")) as locked:
        shut = f"towline://127.0.0.1:{locked.port}"
        for arguments, said in (
            (["archive", out, "--url", url, "--topic", "nothing"], "there is no topic nothing at towline://"),
            (["archive", out, "--path", str(tmp_path / "data"), "--topic", "nothing"], "there is no topic nothing in "),
            (["archive", out, "--url", shut], "this broker asks for a token"),
            (["archive", out, "--url", shut, "--token", "good", "--secret-file", str(secret)], "are not right"),
            (["report", out, "--url", shut], "this broker asks for a token"),
        ):
            assert cli.run(["spark", *arguments]) == 1, arguments
            errors = [line for line in capsys.readouterr().err.splitlines() if "Traceback" in line or "error" in line]
            assert len(errors) == 1, errors
            assert errors[0].startswith("error: "), errors
            assert said in errors[0]


def test_what_cannot_be_read_or_written_is_named_in_one_line(
    spark: SparkSession, broker: BrokerProcess, mq: towline.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(20):
        mq.send_many("orders", [bytes(100)] * 1_000)
    mq.close()
    origin, archive = ["--path", str(tmp_path / "data")], str(tmp_path / "archive")
    assert cli.run(["spark", "archive", archive, *origin]) == 0
    capsys.readouterr()
    (tmp_path / "file").write_bytes(b"no folder")
    log = sorted((tmp_path / "data" / "log").glob("*.log"))[0]
    with log.open("r+b") as file:
        file.seek(log.stat().st_size // 2)
        file.write(b"damaged!")
    url = ["--url", f"towline://127.0.0.1:{broker.port}"]
    for arguments, said in (
        (["archive", str(tmp_path / "file"), *origin], "file cannot be written: "),
        (["archive", str(tmp_path / "other"), *origin], "archive with --skip-lost"),
        (["replay", archive, "--to-topic", "again", "--where", "size >", *url], "--where: [PARSE_SYNTAX_ERROR]"),
    ):
        assert cli.run(["spark", *arguments]) == 1, arguments
        errors = [line for line in capsys.readouterr().err.splitlines() if "Traceback" in line or "error" in line]
        assert len(errors) == 1, errors
        assert errors[0].startswith("error: "), errors
        assert said in errors[0]


class _Java(Exception):
    java_exception = None


@pytest.mark.parametrize(
    ("said", "error", "master", "why"),
    [
        (
            "",
            _Java(
                "An error occurred while calling None.\n: java.lang.IllegalStateException: on a stopped SparkContext."
            ),
            "spark://there:7077",
            "the master spark://there:7077 cannot be reached; is it running?",
        ),
        (
            "",
            _Java("It failed.\n: java.io.IOException: x\nCaused by: java.io.IOException: y"),
            None,
            "java.io.IOException: y",
        ),
        ("", _Java("It failed.\n: java.io.IOException: x"), "local[2]", "java.io.IOException: x"),
        ("one\ntwo", RuntimeError("exited"), None, "two; is Java 17 there (JAVA_HOME)?"),
        ("", OSError("no java"), "local[1]", "no java; is Java 17 there (JAVA_HOME)?"),
    ],
)
def test_why_spark_does_not_start_is_said_in_one_line(
    said: str, error: Exception, master: str | None, why: str
) -> None:
    assert why_not(said, error, master) == why


@pytest.mark.slow
def test_spark_submit_runs_a_job(mq: towline.Client, tmp_path: Path) -> None:
    import subprocess

    import pyspark

    import towline.__main__

    mq.send_many("orders", [b"x"] * 10)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[1]", str(towline.__main__.__file__), "spark", "archive"]
    command += [str(tmp_path / "archive"), "--path", str(tmp_path / "data"), "-o", "json"]
    done = subprocess.run(
        command, env={**os.environ, **environment()}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == 10
