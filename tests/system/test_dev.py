"""`./dev`, its scripts, and the parts that it brings for tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import parts
from tests.house_rules import ROOT, imports_of, read_sources
from tests.parts import NEEDS, PARTS, chosen_by, need, parts_of, program

SCRIPTS = [ROOT / "dev", *sorted(one for one in (ROOT / "scripts").iterdir() if not one.suffix), ROOT / ".ci" / "run"]

# --- the table of parts -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return read_sources(ROOT, "tests")


class Reach:
    """The parts that a test module could start: it, its conftests, or what they import asks for them by name."""

    def __init__(self, sources: dict[str, str]) -> None:
        read = {name: source for name, source in sources.items() if name != "tests.parts"}
        self._imports = {name: imports_of(name, source, modules=read) for name, source in read.items()}
        self._asked = {name: set(re.findall(r'\bneed\("(\w+)"\)', source)) for name, source in read.items()}

    def of(self, test: str) -> set[str]:
        folders = [test.rsplit(".", count)[0] for count in range(1, test.count(".") + 1)]
        waiting = [test, *(f"{folder}.conftest" for folder in folders if folder != "tests")]
        reached: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in self._imports and name not in reached:
                reached.add(name)
                waiting += self._imports[name]
        return set().union(*(self._asked[name] for name in reached))


def declared() -> Iterator[tuple[str, str]]:
    """Every test module of the table, with each part that it is to need."""
    for place, needed in NEEDS.items():
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("test_*.py")):
            for part in needed:
                yield ".".join(file.relative_to(ROOT).with_suffix("").parts), part


def test_every_place_of_the_table_is_there_and_names_parts() -> None:
    assert [place for place in NEEDS if not (ROOT / place).exists()] == []
    assert {part for needed in NEEDS.values() for part in needed} == set(PARTS)


def test_no_test_is_said_to_need_what_it_cannot_start(sources: dict[str, str]) -> None:
    reach = Reach(sources)
    assert [(test, part) for test, part in declared() if part not in reach.of(test)] == []
    assert reach.of("tests.cli.test_access") == {"openssl"}
    assert reach.of("tests.unit.frame.test_gather") == set()


def test_a_test_that_needs_what_the_table_does_not_say_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/unit/frame/test_gather.py::test_it (call)")
    with pytest.raises(pytest.fail.Exception, match=r"tests/unit/frame/test_gather.py needs openssl, and NEEDS"):
        need("openssl")


def test_tests_are_skipped_only_for_want_of_root_of_a_service_that_nobody_named_or_of_history(
    sources: dict[str, str],
) -> None:
    skips = re.compile(r"pytest\.(mark\.)?(importorskip|skip|skipif|xfail)\b")
    assert [name for name, source in sources.items() if skips.search(source)] == ["tests.parts"]
    assert skips.search(f"@{'pytest'}.mark.skipif(True)")


# --- what is needed for which arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        ([], ["tests"]),
        (["-x", "-k", "ack"], ["tests"]),
        (["tests/client"], ["tests/client"]),
        (["tests/client/", "-n", "2", "./tests/unit/frame"], ["tests/client", "tests/unit/frame"]),
        (["tests/store/sql/test_login.py::test_it[a/b]"], ["tests/store/sql/test_login.py"]),
        (["--ignore", "tests/spark"], ["tests"]),
        (["--ignore=tests/spark", "--deselect", "tests/store/sql/test_login.py"], ["tests"]),
    ],
)
def test_the_arguments_say_which_tests_run(arguments: list[str], paths: list[str]) -> None:
    assert chosen_by(arguments) == paths


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("tests", sorted(PARTS)),
        ("tests/unit/frame", []),
        ("tests/client", ["mariadb", "openssl"]),
        ("tests/client/produce/test_send.py", ["mariadb"]),
        ("tests/store/sql/test_galera.py", ["galera", "mariadb"]),
        ("tests/spark/jobs", ["java", "mariadb"]),
        ("tests/console/test_pages.py", ["browser"]),
        ("tests/cli/test_access.py", ["openssl"]),
    ],
)
def test_only_what_these_tests_need_is_brought(path: str, needed: list[str]) -> None:
    assert parts_of([path]) == needed


# --- bringing and starting --------------------------------------------------------------------------------------------


def ask(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    """`python -m tests.parts`, where programs are found in this folder first."""
    command = [sys.executable, "-m", "tests.parts", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    environment["PATH"] = str(path)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


def put_program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_missing_program_is_asked_for_as_a_package_and_named(tmp_path: Path) -> None:
    assert ask("packages", "tests/cli/test_access.py", path=tmp_path).stdout.split() == ["openssl"]
    assert ask("packages", "tests/unit/frame", path=tmp_path).stdout.split() == []
    done = ask("start", "tests/cli/test_access.py", path=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "dev: openssl is missing: apt-get install openssl\n"


def test_a_program_that_does_not_run_is_named_with_what_it_said(tmp_path: Path) -> None:
    put_program(tmp_path, "openssl", "echo 'libcrypto.so.3: cannot open shared object file' >&2; exit 127")
    done = ask("start", "tests/cli/test_access.py", path=tmp_path)
    assert done.returncode == 1
    assert "dev: openssl is installed, and does not start: " in done.stderr
    assert "libcrypto.so.3: cannot open shared object file" in done.stderr


@pytest.mark.parametrize(("version", "well"), [("11.0.2", False), ("17.0.9", True), ("25", True)])
def test_an_old_java_does_not_count(
    version: str, well: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_program(tmp_path, "java", f"""echo 'openjdk version "{version}" 2026-01-01' >&2""")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(parts, "STAMP", tmp_path / "stamp")
    assert parts.start(["java"]) is well
    assert ("needs Java 17" in capsys.readouterr().err) is not well


def test_a_part_is_started_once_and_again_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_program(tmp_path, "openssl", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(parts, "STAMP", tmp_path / "stamp")
    said = []
    for text in ("exit 0", "exit 0", "exit 0; :"):
        if text not in (tmp_path / "openssl").read_text().splitlines():
            put_program(tmp_path, "openssl", text)
        assert parts.start(["openssl"])
        said.append(capsys.readouterr().err)
    assert said == ["dev: starting openssl once\n", "", "dev: starting openssl once\n"]
    (tmp_path / "openssl").unlink()
    assert not parts.start(["openssl"])
    assert list(json.loads((tmp_path / "stamp").read_text())) == ["openssl"]


def test_a_server_is_found_where_an_ordinary_users_path_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert parts.find("mariadbd") == "/usr/sbin/mariadbd"
    assert parts.find("mariadb-install-db") is None


# --- the scripts ------------------------------------------------------------------------------------------------------


def test_the_scripts_are_sound() -> None:
    need("shellcheck")
    command = [program("shellcheck"), *map(str, SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout


def dev(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "dev"), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_help_names_every_verb() -> None:
    script = (ROOT / "dev").read_text(encoding="utf-8")
    verbs = re.findall(r"^    (\w+)\)$", script, re.MULTILINE)
    assert {"run", "test", "fresh"} <= set(verbs)
    said = dev("help").stdout
    assert [verb for verb in verbs if f"./dev {verb}" not in said] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--as", "nobody"], "--as does not take nobody"),
        (["--only"], "--only wants a word"),
        (["tests/client"], "no such option: tests/client; arguments of ./dev test come after --"),
    ],
)
def test_a_wrong_call_of_fresh_says_what_is_wrong(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [str(ROOT / "scripts" / "fresh"), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"fresh: {said}")


# --- the temporary folder ---------------------------------------------------------------------------------------------

LEAVING = """
import tempfile, time
from pathlib import Path
import pytest
from tests.scratch import memory_folder

def test_that_leaves_much(tmp_path, tmp_path_factory):
    for folder in (tmp_path, tmp_path_factory.mktemp("more"), Path(tempfile.mkdtemp()), memory_folder("db")):
        (folder / "much").write_bytes(b"x")
        print(folder)
    Path({said!r}).write_text("there")
    {then}
"""


@pytest.mark.parametrize(("then", "code"), [("assert False", 1), ("time.sleep(300)", 2)])
def test_a_run_leaves_nothing_in_the_temporary_folder(tmp_path: Path, then: str, code: int) -> None:
    """Not if a test fails, and not if it is ended from outside."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    said = tmp_path / "said"
    (tmp_path / "test_one.py").write_text(LEAVING.format(said=str(said), then=then))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--rootdir", str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([*command, str(tmp_path)], cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + 240
        while not said.exists():
            assert process.poll() is None or said.exists(), process.communicate()[0].decode()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if code == 2:
            process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=240)[0].decode()
    assert process.returncode == code, output
    assert list(temporary.iterdir()) == []
    assert not list(Path("/dev/shm").glob(f"{temporary.name}*"))
