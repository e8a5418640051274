"""Options of every command that talks to a broker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from towline.cli.times import Duration
from towline.errors import BadRequest

if TYPE_CHECKING:
    from towline.client._sync.client import Client

__all__ = ["DEFAULT_URL", "Connection", "Usage"]

DEFAULT_URL = "towline://127.0.0.1:7400"


class Usage(Exception):
    """The command was called wrongly: exit code 2."""


@Parameter(name="*", group="Connection")
@dataclass(frozen=True)
class Connection:
    """The address of the broker, and the credentials."""

    url: Annotated[
        str,
        Parameter(
            name=("--url", "-u"),
            env_var="TOWLINE_URL",
            help="Where the broker is: towline://HOST:PORT, towlines://HOST:PORT with TLS, or file:DIR to open the "
            "folder of a broker that is not running.",
        ),
    ] = DEFAULT_URL
    token: Annotated[
        str,
        Parameter(
            env_var="TOWLINE_TOKEN",
            help="Who is calling: a token, or a user of a broker with security.",
            show_default=False,
        ),
    ] = ""
    secret_file: Annotated[
        Path | None,
        Parameter(
            env_var="TOWLINE_SECRET_FILE",
            help="A file with the secret of the token, or the user's password. Without it the secret is taken from "
            "TOWLINE_SECRET; there is no flag for the secret itself: everyone can see the arguments of a process.",
        ),
    ] = None

    ca_file: Annotated[
        Path | None,
        Parameter(
            help="A file of certificates (PEM) that vouch for a broker with TLS, instead of those this machine trusts."
        ),
    ] = None
    cert_file: Annotated[
        Path | None, Parameter(help="A certificate (PEM) to show to a broker that asks its clients for one.")
    ] = None
    key_file: Annotated[Path | None, Parameter(help="The key (PEM) of --cert-file.")] = None
    patience: Annotated[
        Duration,
        Parameter(
            help="How long to go on trying when the broker cannot be reached or does not answer.", show_default="5s"
        ),
    ] = 5.0

    def connect(self) -> Client:
        import towline

        secret = self.secret()
        try:
            return towline.connect(
                self.url, token=self.token, secret=secret, timeout=self.patience, **self.certificates()
            )
        except BadRequest as error:
            raise Usage(str(error)) from None

    def certificates(self) -> dict[str, Any]:
        """As `towline.connect` takes them."""
        given = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
        return {name: None if file is None else str(file) for name, file in given.items()}

    def secret(self) -> str:
        if self.secret_file is None or self.secret_file == Path():  # an empty variable
            return os.environ.get("TOWLINE_SECRET", "")
        try:
            return self.secret_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise Usage(f"secret file {self.secret_file}: {reason}") from None
