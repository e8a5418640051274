"""Opening a connection, and the answers that any request may have."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from towline.errors import TowlineError, from_code
from towline.protocol.base import MANY, Answer, Name, Natural, Request

__all__ = ["CALLER_MAX", "Beat", "Done", "Failed", "Hello", "Welcome"]

CALLER_MAX: Final = 64


class Hello(Request, frozen=True, array_like=True):
    """The first request on every connection."""

    kind = 1
    version_min: int
    version_max: int
    token: Annotated[str, msgspec.Meta(max_length=64)]
    """The identity of the caller, as kept beside each message it sends: for example `appid-340101;sid-p0912`."""
    secret: Annotated[str, msgspec.Meta(max_length=512)] = ""
    """Proves who is calling, where the broker asks for it."""
    software: Name = ""
    caller: Annotated[str, msgspec.Meta(max_length=CALLER_MAX)] = ""
    """The address of the end user, if a gateway is calling."""


class Welcome(Answer, frozen=True, array_like=True):
    kind = 129
    version: int
    broker: str
    epoch: int
    """Grows with every start of the broker: it tells a client whether this is the same broker process."""
    max_request_bytes: int
    heartbeat_s: float
    """A consumer that is silent for this long loses what it holds; beat three times as often."""
    software: Name = ""
    """The broker's version of Towline."""


class Failed(Answer, frozen=True, array_like=True):
    kind = 255
    code: str
    message: str
    exact: str = ""
    """The code of an error that older clients do not know; `code` is what they read."""

    @classmethod
    def of(cls, error: TowlineError) -> Failed:
        return cls(error.older_code, str(error), error.code) if error.older_code else cls(error.code, str(error))

    @property
    def error(self) -> TowlineError:
        return from_code(self.code, self.message, self.exact)


class Done(Answer, frozen=True, array_like=True):
    """It was done; there is no more to the answer."""

    kind = 254


class Beat(Request, frozen=True, array_like=True):
    """A heartbeat. Answered by `Done`; with a subscription by `Held`."""

    kind = 2
    subscription: Natural = 0
    """The consumer that asks for its leases."""
    holding: Annotated[list[int], msgspec.Meta(max_length=MANY)] = []  # noqa: RUF012 - a Struct copies it
    """The pulls that it is working on."""
