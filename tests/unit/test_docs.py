"""The pages keep their word: links lead somewhere, and what the lineage names is there."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house_rules import ROOT
from towline.cli import app
from towline.cli.serve import settings

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINEAGE = ROOT / "docs" / "lineage.md"

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_NAMED = re.compile(r"`([^`]+)`")
_PATH = re.compile(r"[\w.-]+(/[\w.-]+)*(/|\.(py|md|sql|json))")
_TEST = re.compile(r"^(?:async )?def (test_\w+)|^    (?:async )?def (test_\w+)|^(Test\w+) =", re.MULTILINE)


def anchors(page: str) -> set[str]:
    """The headings of a page, as browsers of repositories name them."""
    titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(path: Path) -> list[str]:
    dead = []
    for link in _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A title\n[a](#a-title) [b](page.md#none) [c](no.md) [d](https://example.com/)\n```\n[e](x)\n```\n"
    )
    assert dead_links(page) == ["page.md#none", "no.md"]


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in reached:
            continue
        reached.add(page)
        links = [link.partition("#")[0] for link in _LINK.findall(page.read_text(encoding="utf-8"))]
        waiting += [page.parent / link for link in links if link.endswith(".md") and ":" not in link]
    assert set(PAGES) <= reached


# --- docs/lineage.md


def names_of_tests() -> Counter[str]:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    return Counter("".join(found) for text in texts for found in _TEST.findall(text))


def wrong_names(page: str) -> list[str]:
    """What the page names between backticks that is a path, a test, a benchmark or a setting, and is not there."""
    tests, flags = names_of_tests(), {setting.flag for setting in settings()}
    scenarios = (ROOT / "bench" / "__main__.py").read_text(encoding="utf-8")
    wrong = []
    for name in _NAMED.findall(page):
        path, _, test = name.partition("::")
        if test or re.fullmatch(r"test_\w+", name):
            there = (test in (ROOT / path).read_text(encoding="utf-8")) if test else tests[name] == 1
            there = there and (not test or tests[test] > 0)
        elif name.startswith("./dev bench"):
            there = all(f'"{one}":' in scenarios for one in name.split()[2:])
        elif name.startswith("--"):
            there = name.split()[0] in flags
        elif _PATH.fullmatch(name) and "/" in name:
            there = (ROOT / name).exists() or (ROOT / "towline" / name).exists()
        else:
            continue
        if not there:
            wrong.append(name)
    return wrong


def rows(page: str) -> Iterator[list[str]]:
    for line in page.splitlines():
        if line.startswith("|") and not re.match(r"\|(-+\||\s*(idea|promise)\s*\|)", line):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def test_every_path_and_test_of_the_lineage_is_there() -> None:
    assert wrong_names(LINEAGE.read_text(encoding="utf-8")) == []


def test_what_is_not_there_is_found() -> None:
    page = (
        "`broker/nothing.py` `test_nothing` `tests/unit/test_docs.py::test_nothing` `--nothing 1` `./dev bench nothing`"
    )
    assert wrong_names(page) == _NAMED.findall(page)
    page = (
        "`broker/topics/topic.py` `test_what_is_not_there_is_found` `tests/` `--store mysql://…` `./dev bench ordered`"
    )
    assert wrong_names(page) == []


def test_every_row_of_the_lineage_is_shown_by_a_test_a_benchmark_or_says_that_it_is_not() -> None:
    for row in rows(LINEAGE.read_text(encoding="utf-8")):
        assert re.search(r"`(tests/|test_|\./dev bench)|\bnot shown\b", row[-1]), row


# --- ARCHITECTURE.md


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    names = {re.split(r"[<>=!~;\[ ]", one)[0] for one in wanted}
    page = (ROOT / "docs" / "decisions" / "dependencies.md").read_text(encoding="utf-8")
    cells = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("|"))
    given = set(re.findall(r"[\w.-]+", cells))
    assert names - given == set()


def tree() -> str:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return page.partition("## The tree")[2].partition("## Imports")[0]


def test_every_package_is_in_the_tree() -> None:
    folders = [path.parent.name for path in (ROOT / "towline").rglob("__init__.py")]
    assert [name for name in folders if name != "towline" and f"{name}/" not in tree()] == []


def paths_of(page: str) -> list[tuple[str, str]]:
    """`file:function` for each step of a path."""
    return re.findall(r"`([\w/]+\.py):(\w+)`", page)


def missing_steps(page: str) -> list[str]:
    return [f"{file}:{name}" for file, name in paths_of(page) if not _defines(ROOT / "towline" / file, name)]


def _defines(path: Path, name: str) -> bool:
    return path.exists() and re.search(rf"(def|class) {name}\b", path.read_text(encoding="utf-8")) is not None


def test_every_step_of_a_path_is_there() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(paths_of(page)) > 50
    assert missing_steps(page) == []


def test_a_step_that_is_not_there_is_found() -> None:
    page = "`broker/broker.py:nothing` `broker/nothing.py:send` `broker/broker.py:_recover`"
    assert missing_steps(page) == ["broker/broker.py:nothing", "broker/nothing.py:send"]


def test_every_file_that_a_page_names_is_there() -> None:
    """In backticks, by its path from the root, from `towline/` or from the page's own folder."""
    missing = []
    for page in PAGES:
        for name in _NAMED.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
            places = (ROOT, ROOT / "towline", page.parent)
            if re.fullmatch(r"[\w-]+(/[\w.-]+)+\.(py|md|txt)", name) and not any((at / name).exists() for at in places):
                missing.append(f"{page.name}: {name}")
    assert missing == []


def commands(page: str) -> set[tuple[str, str]]:
    """The commands of `towline` that a page shows, in backticks or as lines of its examples."""
    lines = [line for block in _FENCE.findall(page) for line in block.splitlines()] + _NAMED.findall(
        _FENCE.sub("", page)
    )
    return set(re.findall(r"^(?:.* \| )?towline ([a-z]+)(?: ([a-z]+(?:-[a-z]+)*)\b)?", "\n".join(lines), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_command_of_a_page_is_there(page: Path) -> None:
    for command, verb in commands(page.read_text(encoding="utf-8")):
        assert command in app, command
        verbs = [name for name in app[command] if not name.startswith("-")]
        assert not (verbs and verb) or verb in verbs, f"{command} {verb}"
