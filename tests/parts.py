"""The programs that tests start and pip does not bring: which tests need them, and the packages that bring them.

A part that is missing fails the tests that need it. A test is skipped only for what this machine cannot be given: root,
a service that nobody named, or git's history. `./dev test` asks here what to install, and whether all of it starts:

    python -m tests.parts packages [pytest's arguments]
    python -m tests.parts start [pytest's arguments]
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

__all__ = [
    "NEEDS",
    "PARTS",
    "lacking",
    "main",
    "named",
    "need",
    "needs_history",
    "needs_root",
    "parts_of",
    "program",
    "run_program",
]

ROOT = Path(__file__).resolve().parents[1]
STAMP = Path(sys.prefix) / "towline-parts"
"""What was seen to start, and in what state of the machine."""
DEADLINE_S = 240.0

NEEDS = {
    "tests/broker": ("mariadb",),
    "tests/broker/access/test_access.py": ("openssl",),
    "tests/broker/access/test_security.py": ("openssl",),
    "tests/broker/cluster/test_mtls.py": ("openssl",),
    "tests/broker/server/test_unread_answers.py": ("openssl",),
    "tests/cli/test_access.py": ("openssl",),
    "tests/cli/test_demo.py": ("java",),
    "tests/client": ("mariadb",),
    "tests/client/link/test_broker_restart.py": ("openssl",),
    "tests/console": ("browser",),
    "tests/console/test_served_console.py": ("openssl",),
    "tests/console/test_tls.py": ("openssl",),
    "tests/spark": ("java", "mariadb"),
    "tests/store/contract": ("mariadb",),
    "tests/store/sql": ("mariadb",),
    "tests/store/sql/test_galera.py": ("galera",),
    "tests/store/sql/test_login.py": ("openssl",),
    "tests/system/cluster": ("mariadb",),
    "tests/system/crash/test_kill_catalog.py": ("mariadb",),
    "tests/system/everything": ("mariadb",),
    "tests/system/semantics": ("mariadb",),
    "tests/system/test_dev.py": ("shellcheck",),
    "tests/system/upgrade/test_rolling.py": ("mariadb",),
}
"""The parts that the tests of a file, or of all files below a folder, start."""

# --- where they are ---------------------------------------------------------------------------------------------------


def find(name: str) -> str | None:
    """A program, or a file by its path. Servers lie where the PATH of an ordinary user does not lead."""
    if name.startswith("/"):
        return name if Path(name).exists() else None
    if name == "java" and "JAVA_HOME" in os.environ:
        return shutil.which("java", path=str(Path(os.environ["JAVA_HOME"], "bin")))
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))


def find_browser() -> str | None:
    """Chromium or Chrome of this machine."""
    return find("chromium") or find("google-chrome")


def has_own_browser() -> bool:
    """Whether Playwright has brought one."""
    given = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    return any((Path(given) if given else Path.home() / ".cache" / "ms-playwright").glob("chromium*"))


def is_ubuntu() -> bool:
    release = Path("/etc/os-release")
    return release.exists() and "\nID=ubuntu\n" in "\n" + release.read_text(encoding="utf-8")


def playwright_driver() -> list[str]:
    from playwright._impl._driver import compute_driver_executable

    return [str(each) for each in compute_driver_executable()]


# --- what they are ----------------------------------------------------------------------------------------------------


def run_program(*command: str) -> str:
    """What a program says; an error if it does not run."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=DEADLINE_S, check=False
        )
    except OSError as error:
        raise RuntimeError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {(done.stderr or done.stdout).strip() or f'status {done.returncode}'}")
    return done.stdout + done.stderr


def start_java() -> None:
    said = run_program(program("java"), "-version")
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < 17:
        raise RuntimeError(f"Spark needs Java 17 or newer, and {program('java')} is: {said.splitlines()[0]}")


def start_mariadb() -> None:
    from tests.store.sql.server import MariaDb

    server = MariaDb()
    try:
        server.install().start().sql("SELECT 1")
    finally:
        server.remove()


def start_galera() -> None:
    from tests.store.sql.galera import Galera

    run_program(program("rsync"), "--version")
    with Galera(size=1) as cluster:
        cluster.wait_synced(cluster.nodes[0])


def start_browser() -> None:
    run_program(playwright_driver()[0], "--version")
    from playwright.sync_api import sync_playwright

    from tests.console.browser import launch

    with sync_playwright() as playwright, launch(playwright) as browser:
        browser.new_page().goto("data:text/html,<p>here</p>")


def browser_packages() -> list[str]:
    """Ubuntu has Chromium only as a snap, which a container or a CI machine does not run: there, Playwright brings its
    own. Its driver needs a library that it does not bring."""
    packages = []
    try:
        run_program(playwright_driver()[0], "--version")
    except RuntimeError:
        packages.append("libatomic1")
    if find_browser() is None and not has_own_browser():
        packages.append("playwright:chromium" if is_ubuntu() else "chromium")
    return packages


class Part(NamedTuple):
    start: Callable[[], object]
    """Starts it once, or says why not."""
    packages: dict[str, str]
    """Debian's packages, by the program or file that each must bring."""
    further_packages: Callable[[], list[str]] = list
    """Those that are missing besides."""


PARTS = {
    "browser": Part(start_browser, {}, browser_packages),
    "galera": Part(start_galera, {"/usr/lib/galera/libgalera_smm.so": "galera-4", "rsync": "rsync"}),
    "java": Part(start_java, {"java": "default-jre-headless"}),
    "mariadb": Part(
        start_mariadb,
        dict.fromkeys(["mariadbd", "mariadb-install-db", "mariadb", "mariadb-dump"], "mariadb-server"),
    ),
    "openssl": Part(lambda: run_program(program("openssl"), "version"), {"openssl": "openssl"}),
    "shellcheck": Part(lambda: run_program(program("shellcheck"), "--version"), {"shellcheck": "shellcheck"}),
}


def lacking(part: str) -> list[str]:
    """The packages that would bring what is missing of it."""
    made = PARTS[part]
    packages = [package for name, package in made.packages.items() if find(name) is None]
    return list(dict.fromkeys([*packages, *made.further_packages()]))


def remedy(packages: Sequence[str]) -> str:
    """How to bring them by hand."""
    debian = [package for package in packages if not package.startswith("playwright:")]
    steps = [f"apt-get install {' '.join(debian)}"] if debian else []
    if len(debian) < len(packages):
        steps.append(f"{sys.executable} -m playwright install --with-deps --only-shell chromium")
    return " && ".join(steps)


# --- for tests --------------------------------------------------------------------------------------------------------


def need(part: str) -> None:
    """Fail the test that runs, if it may not need this part or if the part is missing."""
    running = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    if running and part not in parts_of([running]):
        pytest.fail(f"{running} needs {part}, and NEEDS of tests/parts.py does not say so", pytrace=False)
    if packages := lacking(part):
        pytest.fail(f"{part} is missing: ./dev test brings it, or {remedy(packages)}", pytrace=False)


def program(name: str) -> str:
    """The path of a part's program."""
    found = find(name)
    if found is None:
        [part] = [part for part, made in PARTS.items() if name in made.packages]
        need(part)
    assert found is not None
    return found


def needs_root(why: str) -> NoReturn:
    """Skip the test that runs: it does what only root may, on a machine that lets root."""
    pytest.skip(f"needs root: {why}")


def needs_history(of: str) -> NoReturn:
    """Skip the test that runs: it takes programs of another version from git, which has them nowhere near."""
    pytest.skip(f"needs git's history of {of}: `git fetch --unshallow`, or a clone instead of an archive")


def named(config: pytest.Config, option: str, example: str) -> str:
    """The service that the user named with an option, for tests that are skipped without one."""
    given: str = config.getoption(option)
    if not given:
        pytest.skip(f"needs a service that nobody named: {option} {example}")
    return given


# --- for ./dev test ---------------------------------------------------------------------------------------------------

NOT_RUN = ("--deselect", "--ignore", "--ignore-glob")
"""Options of pytest that name tests which do not run."""


def chosen_by(arguments: Sequence[str]) -> list[str]:
    """The files and folders that pytest would run with these arguments."""
    found, before = [], ""
    for argument in arguments:
        path = Path(ROOT, argument.partition("::")[0]).resolve()
        if before not in NOT_RUN and not argument.startswith("-") and path.exists():
            found.append(os.path.relpath(path, ROOT))
        before = argument
    return found or ["tests"]


def parts_of(paths: Iterable[str]) -> list[str]:
    """What the tests of these files and folders need."""
    needed: set[str] = set()
    for path in map(Path, paths):
        for place, parts in NEEDS.items():
            if path.is_relative_to(place) or Path(place).is_relative_to(path):
                needed.update(parts)
    return sorted(needed)


def state_of(part: str) -> str:
    """Changes with the part's programs, with Playwright, and with any Debian package, which may be a library of it."""
    names = [*PARTS[part].packages, "/var/lib/dpkg/status"]
    paths = [find(name) for name in names]
    if part == "browser":
        paths += [find_browser(), *playwright_driver()]
    facts = [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths if path]  # noqa: PTH116
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def seen_starting() -> dict[str, str]:
    try:
        seen: dict[str, str] = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return seen


def start(parts: Iterable[str]) -> bool:
    """Start each part once that was not seen starting on this machine as it is, and say which one does not and why."""
    well, seen = True, seen_starting()
    for part in parts:
        if packages := lacking(part):
            say(f"{part} is missing: {remedy(packages)}")
            well = False
            continue
        state = state_of(part)
        if seen.get(part) == state:
            continue
        say(f"starting {part} once")
        try:
            PARTS[part].start()
        except (Exception, pytest.fail.Exception) as error:
            say(f"{part} is installed, and does not start: {str(error).strip()[-2000:]}")
            well = False
        else:
            seen[part] = state
    fresh = STAMP.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(seen), encoding="utf-8")
    fresh.replace(STAMP)
    return well


def say(text: str) -> None:
    print(f"dev: {text}", file=sys.stderr, flush=True)


def main(verb: str, *arguments: str) -> int:
    parts = parts_of(chosen_by(arguments))
    if verb == "packages":
        print(*dict.fromkeys(package for part in parts for package in lacking(part)), sep="\n")
        return 0
    assert verb == "start", verb
    return 0 if start(parts) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
