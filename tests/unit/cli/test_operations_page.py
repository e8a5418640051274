"""docs/operations.md tells the truth about settings and commands."""

from __future__ import annotations

import re

from tests.unit.cli.settings_table import PAGE, with_table
from towline.cli import app
from towline.settings import load_settings


def test_the_table_of_settings_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "run: python -m tests.unit.cli.settings_table"


def test_every_command_it_names_exists() -> None:
    named = set(re.findall(r"towline ([a-z]+)(?: ([a-z]+))?", PAGE.read_text(encoding="utf-8")))
    for command, verb in named:
        assert command in app, command
        subcommands = [name for name in app[command] if not name.startswith("-")]
        if subcommands and verb:
            assert verb in subcommands, f"{command} {verb}"


def test_the_systemd_unit_ends_with_its_store_and_is_started_again() -> None:
    [unit] = re.findall(r"```ini\n(\[Service\]\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = unit.splitlines()
    assert "Restart=on-failure" in lines
    named = [line.removeprefix("Environment=").partition("=") for line in lines if line.startswith("Environment=")]
    environment = {name: value for name, _, value in named}
    assert load_settings(environment=environment).exit_on_store_failure
