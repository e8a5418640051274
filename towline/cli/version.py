"""`towline version`."""

from __future__ import annotations

from towline.cli.output import Output, print_json

__all__ = ["version", "version_text"]


def version_text() -> str:
    from towline.version import __version__

    return __version__


def version(*, output: Output = "text") -> None:
    """Show the version of Towline, and of what it runs on."""
    import platform

    from towline.protocol.messages import VERSION, VERSION_MIN

    if output == "json":
        print_json(
            {
                "towline": version_text(),
                "protocol": VERSION,
                "protocol_min": VERSION_MIN,
                "python": platform.python_version(),
            }
        )
    else:
        print(f"towline {version_text()} (protocol {VERSION_MIN} to {VERSION}, Python {platform.python_version()})")
