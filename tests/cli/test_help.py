"""Help good enough to work from, and usage errors that say what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO

import pytest
from cyclopts import App

from tests.cli.conftest import Cli
from tests.inside.cli import settings
from towline.cli import app

COMMANDS = [
    *("send", "consume", "serve", "backup", "restore", "version", "topic", "group", "dead", "tx", "log", "bench"),
    *(f"topic {verb}" for verb in ("create", "ls", "info", "rm")),
    *(f"group {verb}" for verb in ("create", "ls", "info", "lag", "rm")),
    *(f"dead {verb}" for verb in ("ls", "resend")),
    *(f"tx {verb}" for verb in ("ls", "resolve")),
    *(f"log {verb}" for verb in ("verify", "dump", "stat")),
    *(f"bench {verb}" for verb in ("produce", "consume", "pubsub", "latency")),
]


def wide(text: str) -> str:
    """Without the wrapping and the frames that a help page has."""
    return " ".join(text.replace("│", " ").split())


def test_help_names_every_command(cli: Cli) -> None:
    text = cli("--help").text
    assert [word for word in COMMANDS if " " not in word and f" {word} " not in text] == []
    assert cli().text == text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    app([*command.split(), "--help"], result_action="return_value")
    text = capsys.readouterr().out
    assert f"Usage: towline {command}" in text
    for argument in app[command.split(maxsplit=1)[0]].parse_commands([])[1][-1:]:
        assert argument.help


def test_no_help_says_that_a_flag_is_off_by_default() -> None:
    def pages(commands: App, path: list[str]) -> Iterator[str]:
        for name in commands:
            if not name.startswith("-"):
                yield from pages(commands[name], [*path, name])
        said = StringIO()
        with redirect_stdout(said):
            app([*path, "--help"], result_action="return_value")
        yield said.getvalue()

    assert [page[:80] for page in pages(app, []) if "default: False" in page] == []


def flags_below(commands: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """All commands, and the flags that each has."""
    for name in commands:
        if not name.startswith("-"):
            found = commands[name]
            if found.default_command is not None:
                yield (*path, name), {flag for one in found.assemble_argument_collection() for flag in one.names}
            yield from flags_below(found, (*path, name))


def test_what_destroys_has_a_dry_run_and_json_and_short_forms_mean_the_same_everywhere() -> None:
    commands = dict(flags_below(app))
    destroying = {"rm", "purge", "cancel", "revoke", "forget", "reset", "resolve"}
    found = {path: flags for path, flags in commands.items() if path[-1] in destroying}
    assert len(found) >= 11
    assert [path for path, flags in found.items() if not {"--dry-run", "--output"} <= flags] == []
    # `-n` is how many.
    assert [path for path, flags in commands.items() if "-n" in flags and not flags & {"--count", "--limit"}] == []


def test_help_of_serve_explains_every_setting(cli: Cli) -> None:
    text = wide(cli("serve", "--help", env={"COLUMNS": "500"}).text)
    for setting in settings():
        assert setting.flag in text
        assert f"[{setting.variable}]" in text
        assert wide(setting.help.replace("`", "")) in text
        assert f"[default: {setting.shown_default or 'none'}]" in text


def test_help_loads_nothing_it_does_not_need() -> None:
    script = (
        "import sys\nfrom towline.cli import run\nrun(['--help'])\n"
        "heavy = {'asyncio', 'towline.broker', 'towline.store'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("topic", "nonsense"),
        ("send",),
        ("send", "t", "body", "--nonsense"),
        ("send", "t", "body", "--priority", "urgent"),
        ("send", "t", "body", "--header", "novalue"),
        ("send", "t", "body", "--file", "x"),
        ("send", "t", "body", "--whole"),
        ("consume", "t", "-n", "0"),
        ("consume", "t", "--from", "yesterday-ish"),
        ("consume", "t", "-g", "g", "--peek"),
        ("consume", "t", "-g", "g", "--from", "10m"),
        ("consume", "t", "--priority", "high"),
        ("consume", "t", "-o", "yaml"),
        ("consume", "t", "--idle-timeout", "soon"),
        ("topic", "create", "t", "--retention", "-1"),
        ("group", "create", "t", "g", "--retry-delays", "10s,x"),
        ("dead", "resend", "t", "g"),
        ("dead", "resend", "t", "g", "1", "--all"),
        ("dead", "resend", "t", "g", "1", "--limit", "5"),
        ("tx", "resolve", "t1", "maybe"),
        ("bench", "latency", "--rate", "0"),
        ("serve", "--max-connections", "many"),
        ("serve", "--max-connections", "0"),
        ("serve", "--config", "missing.toml"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments, code=2)
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert result.out == b""


def test_version(cli: Cli) -> None:
    assert cli("version").text.startswith("towline ")
    line = cli("version", "-o", "json").line
    assert (line["protocol_min"], line["protocol"]) == (1, 2)
    assert cli("--version").text.strip() == cli("version", "-o", "json").line["towline"]
