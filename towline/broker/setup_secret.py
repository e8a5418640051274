"""The way in for the first administrator: a secret that is good until there is one.

There is no default password. The secret is made anew at each start as long as nobody may administer access; it is
written to a file that only the broker's own user can read, and never to a log.
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from towline.broker.access_book import hash_secret, new_secret
from towline.errors import StoreFailed
from towline.settings import BrokerSettings

__all__ = ["SetupSecret", "setup_path"]


class SetupSecret:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._hash = ""

    def make(self) -> None:
        secret = new_secret()
        self.path.unlink(missing_ok=True)
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secret + "\n")
        except OSError as error:
            raise StoreFailed(f"the setup secret cannot be written to {self.path}: {error.strerror}") from None
        self._hash = hash_secret(secret)

    def is_right(self, secret: str) -> bool:
        return bool(self._hash) and hmac.compare_digest(self._hash, hash_secret(secret))

    def end(self) -> None:
        """There is an administrator now."""
        self._hash = ""
        self.path.unlink(missing_ok=True)


def setup_path(settings: BrokerSettings) -> Path:
    if settings.setup_file:
        return Path(settings.setup_file).expanduser()
    scheme, _, rest = settings.store.partition(":")
    folder = Path(rest).expanduser() if scheme == "file" else Path()
    return (folder / "setup-secret").absolute()
