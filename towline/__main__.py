"""The command `towline`, also as `python -m towline`; it needs the extra `server`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    try:
        from towline import cli
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("cyclopts", "rich"):
            raise
        sys.stderr.write(
            f"error: the command line needs {error.name}, which is not installed: pip install 'towline[server]'\n"
        )
        sys.exit(2)
    cli.main()


if __name__ == "__main__":
    main()
