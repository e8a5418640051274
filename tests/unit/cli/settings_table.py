"""The table of settings in docs/operations.md, made from the settings object.

`python -m tests.unit.cli.settings_table` writes it anew; a test sees to it that this was not forgotten.
"""

from __future__ import annotations

from pathlib import Path

from towline.cli.serve import Setting, settings

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operations.md"
BEGIN = "<!-- settings: made by python -m tests.unit.cli.settings_table -->"
END = "<!-- end of settings -->"


def table() -> str:
    rows = ["| flag | default | what it is |", "|---|---|---|", *map(_row, settings())]
    return "\n".join(rows)


def _row(setting: Setting) -> str:
    default = f"`{setting.shown_default}`" if setting.shown_default else ""
    limits = f" ({setting.limits})" if setting.limits else ""
    return f"| `{setting.flag}` | {default} | {setting.help}{limits} |"


def with_table(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
