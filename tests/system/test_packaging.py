"""What an installation brings: the core alone, its extras, and the versions that are pinned."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.house_rules import ROOT

LOCK = ROOT / "requirements.lock"
CORE_ALONE = """
import sys

class OnlyTheCore:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package not in sys.stdlib_module_names | {"towline", "msgspec", "crc32c", "backports"}:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)

sys.meta_path.insert(0, OnlyTheCore())
"""


def run_with_the_core_alone(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CORE_ALONE + script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def name_of(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement)[0].lower().replace(".", "-").replace("_", "-")


def test_a_program_sends_and_consumes_with_the_core_alone(tmp_path: Path) -> None:
    done = run_with_the_core_alone(f"""
import towline
with towline.connect("file:{tmp_path / "data"}") as mq:
    mq.send("orders", b"one", key="order-1")
    with mq.consumer("orders", group="billing") as consumer:
        batch = consumer.pull(wait=20.0)
        batch.ack()
        print([message.body for message in batch])
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[b'one']\n"


def test_the_command_line_names_the_extra_that_it_needs() -> None:
    done = run_with_the_core_alone("from towline.__main__ import main\nmain()")
    assert done.returncode == 2
    assert "pip install 'towline[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_pinned_package_has_its_hashes_and_no_address() -> None:
    lock = LOCK.read_text(encoding="utf-8")
    assert "://" not in lock
    for requirement in re.split(r"\n(?=[\w#])", lock):
        assert requirement.startswith("#") or re.match(
            r"[\w.-]+==[\w.]+( ; [^\n]+?)? \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n?)+$", requirement
        ), requirement[:200]


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted += [one for extra in project["project"]["optional-dependencies"].values() for one in extra]
    pinned = set(re.findall(r"^([\w.-]+)==", LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    assert {name_of(one) for one in wanted} - {name_of(one) for one in pinned} == set()
