"""Brokers whose tokens are declared in an access file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["access_file", "declared"]


def access_file(folder: Path, roles: tuple[str, ...] = ("admin",), /, **secrets: str) -> Path:
    """A file of these tokens, which may all do the same."""
    path = folder / "access.toml"
    tokens = [
        f"[tokens.{name}]\nsecret = {json.dumps(secret)}\nroles = {json.dumps(roles)}\n"
        for name, secret in secrets.items()
    ]
    path.write_text("".join(tokens))
    path.chmod(0o600)
    return path


def declared(folder: Path, **secrets: str) -> dict[str, Any]:
    """The settings of a broker that lets these in, and lets them do everything."""
    return {"security": True, "access_file": str(access_file(folder, **secrets))}
