"""`towline run`: the handlers of an app."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from towline.cli.options import Usage
from towline.log_lines import LineFormatter, log_to_stderr

if TYPE_CHECKING:
    from towline.client.app.app import App

__all__ = ["run"]


def run(
    target: Annotated[str, Parameter(help="Where the app is: MODULE:NAME, for example `shop.workers:app`.")],
    /,
    *,
    app_dir: Annotated[Path, Parameter(help="The folder to import from.")] = Path(),
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Parameter(help="What is logged to stderr.")
    ] = "info",
) -> int:
    """Run the handlers of an app until SIGTERM or SIGINT.

    No new messages are taken then; running handlers may end, and what is left goes back. A second signal does not wait.

        towline run shop.workers:app --app-dir ./src
    """
    log_to_stderr(log_level, LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"), force=False)
    _find(target, app_dir).run()
    return 0


def _find(target: str, app_dir: Path) -> App:
    from towline.client.app.app import App

    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise Usage(f"{target!r} is not of the form MODULE:NAME")
    if not app_dir.is_dir():
        raise Usage(f"--app-dir {app_dir}: there is no such folder")
    sys.path.insert(0, str(app_dir.resolve()))
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise Usage(f"there is no module {error.name} in {app_dir.resolve()}") from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise Usage(f"{target} is not a towline.App")
    return found
