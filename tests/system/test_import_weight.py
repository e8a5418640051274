"""The weight of an import: which packages a fresh interpreter has loaded after it."""

from __future__ import annotations

import subprocess
import sys

from tests.house_rules import ROOT

HEAVY = {"asyncmy", "cyclopts", "fastapi", "nicegui", "numpy", "pyarrow", "pyspark", "rich", "sqlalchemy"}
SLOW = HEAVY | {"asyncio", "crc32c", "msgspec", "ssl", "uvloop"}
"""What takes a while to import, besides."""


def heavy_modules_after(statement: str, heavy: set[str] = HEAVY) -> list[str]:
    """Which heavy packages a fresh interpreter has loaded after the statement."""
    script = f"import sys\n{statement}\nprint(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_towline_is_light() -> None:
    assert heavy_modules_after("import towline", SLOW) == []
    assert heavy_modules_after("import towline\ntowline.connect", HEAVY | {"asyncio", "uvloop"}) == []
    assert heavy_modules_after("import towline\ntowline.aio.connect") == []


def test_a_heavy_import_is_found() -> None:
    assert heavy_modules_after("import rich") == ["rich"]


def test_the_table_of_versions_costs_an_import_nothing() -> None:
    code = "import towline.protocol.versions as v; assert v._plan.cache_info().currsize == 0"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
