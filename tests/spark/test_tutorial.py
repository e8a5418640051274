"""The tutorial does what it says, and the examples of docs/spark.md are Python with options that exist."""

from __future__ import annotations

import ast
import re
import runpy
from typing import TYPE_CHECKING

import pytest

from tests.broker.process import BrokerProcess
from tests.inside.spark import READ_OPTIONS, WRITE_OPTIONS
from tests.spark.session import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "spark.md"


def test_the_tutorial_runs(spark: SparkSession, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"spark": spark, "broker_url": f"towline://127.0.0.1:{broker.port}"}
    done = runpy.run_path(str(ROOT / "examples" / "spark_tutorial.py"), init_globals=given)
    said = capsys.readouterr().out
    assert "orders: 2000" in said
    assert f"spent by c7: {sum(n % 50 for n in range(2000) if n % 20 == 7)}" in said
    assert "in the middle: 100 of c7: 100" in said
    assert done["counts"] == {"rope": 667, "anchor": 667, "buoy": 666}
    assert "expensive: 200 first: {'via': 'spark'}" in said


def test_the_examples_of_the_page_are_sound() -> None:
    page = PAGE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) >= 4
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "option":
                name = node.args[0]
                assert isinstance(name, ast.Constant)
                assert name.value in {*READ_OPTIONS, *WRITE_OPTIONS, "checkpointLocation"}, name.value


def test_the_page_names_every_option() -> None:
    page = PAGE.read_text()
    assert [name for name in {*READ_OPTIONS, *WRITE_OPTIONS} if f"`{name}`" not in page] == []
