"""The setup secret: the way in for the first administrator, valid until there is one.

There is no default password. The secret is made anew at each start as long as nobody may administer access; it is
written to a file that only the broker's own user can read, and never to a log. Brokers on one database that share a
folder share the file as well: the first one makes it.
"""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path
from typing import Final

from towline.broker.access.account_store import hash_secret, new_secret
from towline.errors import StoreFailed
from towline.files import open_private
from towline.settings import BrokerSettings

__all__ = ["SetupSecret", "setup_path"]

SECRET_MAX: Final = 200


class SetupSecret:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._hash = ""

    def make(self) -> None:
        secret = new_secret()
        self.path.unlink(missing_ok=True)
        try:
            descriptor = open_private(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, secret=True)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secret + "\n")
        except OSError as error:
            raise StoreFailed(f"the setup secret cannot be written to {self.path}: {error.strerror}") from None
        self._hash = hash_secret(secret)

    def take_up(self) -> bool:
        """Use the secret of another broker that keeps it in the same place, if only our own user can have put it
        there."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return False
        with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
            status = os.fstat(descriptor)
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
            secret = file.read(SECRET_MAX).strip() if ours else ""
        if len(secret) < len(new_secret()):
            return False
        self._hash = hash_secret(secret)
        return True

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
