"""Every error of Towline, in one tree.

    TowlineError
    ├── BadRequest              the caller asked for something that cannot be
    │   ├── BadName             a topic, group or consumer name that is not allowed
    │   ├── BadFrame            a batch of messages that is damaged or malformed
    │   ├── TooLarge            over a stated limit of bytes, or of what one request holds
    │   ├── TooMany             there are as many already as may be
    │   │   └── TooManyConnections  … connections of this broker (retriable, also an Unavailable)
    │   ├── Conflict            it exists already, or with other settings
    │   ├── WrongShard          the sender reckons with another number of shards than the topic has
    │   └── Unsupported         the other side is of a version of Towline that cannot do it
    ├── NotFound                no such topic, group or message
    ├── Partly                  done at some brokers of a cluster, and not at others
    ├── Refused                 permission
    │   └── NotLetIn            authentication: the token, secret or password is not right, or not any more
    ├── LeaseLost               an ack or nack by a consumer that no longer holds the messages
    ├── QueueFull               the store is at its capacity (retriable)
    │   └── DiskFull            the disk under the store has no room left (retriable)
    ├── StoreFailed             the store failed and takes no more writes until the broker restarts
    │   ├── NewerFormat         the store was written by a newer version of Towline
    │   └── OwnershipLost       another broker owns these topics by now (retriable)
    ├── StoreLocked             another broker has the store's folder open
    ├── StoreDamaged            a stored range cannot be read because its bytes are damaged
    ├── Unavailable             the broker cannot be reached, or is shutting down (retriable)
    │   ├── TooManyConnections  it has as many connections as it may (retriable, also a TooMany)
    │   ├── NotOwner            another broker serves this topic (retriable)
    │   ├── Overtaken           another broker changed the same thing in that moment (retriable)
    │   ├── Stopping            the broker shuts down; what it has not answered it has not done (retriable)
    │   ├── Timeout             no answer in time (retriable)
    │   └── Unreadable          the disk does not bring stored bytes now; they are not lost (retriable)
    ├── ProtocolError           bytes that are not this protocol
    └── Closed                  the client, consumer or producer was closed

The docstring of a class is its default message. `code` is what travels on the wire; `retriable` says whether the same
call may succeed later without any change. A class that came later than others has `older_code`: what clients that do
not know it take it for.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BadFrame",
    "BadName",
    "BadRequest",
    "Closed",
    "Conflict",
    "DiskFull",
    "LeaseLost",
    "NewerFormat",
    "NotFound",
    "NotLetIn",
    "NotOwner",
    "Overtaken",
    "OwnershipLost",
    "Partly",
    "ProtocolError",
    "QueueFull",
    "Refused",
    "Stopping",
    "StoreDamaged",
    "StoreFailed",
    "StoreLocked",
    "Timeout",
    "TooLarge",
    "TooMany",
    "TooManyConnections",
    "TowlineError",
    "Unavailable",
    "Unreadable",
    "Unsupported",
    "WrongShard",
    "from_code",
]


class TowlineError(Exception):
    """Something went wrong in Towline."""

    code: ClassVar[str] = "error"
    retriable: ClassVar[bool] = False
    older_code: ClassVar[str] = ""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class BadRequest(TowlineError):
    """The request cannot be carried out as it stands."""

    code = "bad-request"


class BadName(BadRequest):
    """The name is not allowed."""

    code = "bad-name"


class BadFrame(BadRequest):
    """The batch of messages is damaged or malformed."""

    code = "bad-frame"


class TooLarge(BadRequest):
    """The request is larger than the limit."""

    code = "too-large"


class TooMany(BadRequest):
    """There are as many already as may be. Remove some that nobody needs, then try again."""

    code = "too-many"
    older_code = "too-large"


class Conflict(BadRequest):
    """It exists already."""

    code = "conflict"


class WrongShard(BadRequest):
    """The sender reckons with another number of shards than the topic has: look the topic up, and send again."""

    code = "wrong-shard"


class Unsupported(BadRequest):
    """The other side is of a version of Towline that cannot do this: upgrade it."""

    code = "unsupported"
    older_code = "bad-request"


class NotFound(TowlineError):
    """There is no such thing."""

    code = "not-found"


class Partly(TowlineError):
    """It was done at some brokers of the cluster, and not at others. Do it again when all are there."""

    code = "partly"


class Refused(TowlineError):
    """The broker does not let this client do that."""

    code = "refused"


class NotLetIn(Refused):
    """The broker does not let this client in: its token, secret or password is not right, or not any more."""

    code = "not-let-in"


class LeaseLost(TowlineError):
    """These messages are no longer leased to this consumer: they were or will be delivered to another. Drop them."""

    code = "lease-lost"


class QueueFull(TowlineError):
    """The store is at its capacity. Consume, trim or raise the capacity, then send again."""

    code = "queue-full"
    retriable = True


class DiskFull(QueueFull):
    """The disk under the store is full. Free some space or shorten the retention, then send again."""

    code = "disk-full"


class StoreFailed(TowlineError):
    """The store failed and takes no more writes. Look at the broker's log, mend the disk and restart the broker."""

    code = "store-failed"


class NewerFormat(StoreFailed):
    """The store was written by a newer version of Towline. Use that one."""

    code = "newer-format"
    older_code = "store-failed"


class OwnershipLost(StoreFailed):
    """Another broker owns these topics by now."""

    code = "ownership-lost"
    retriable = True


class StoreLocked(TowlineError):
    """Another broker has this folder open."""

    code = "store-locked"


class StoreDamaged(TowlineError):
    """The stored bytes are damaged."""

    code = "store-damaged"


class Unavailable(TowlineError):
    """The broker cannot be reached."""

    code = "unavailable"
    retriable = True


class TooManyConnections(TooMany, Unavailable):
    """The broker has as many connections already as it may have. Try later, or another broker."""

    code = "too-many-connections"
    older_code = "unavailable"


class NotOwner(Unavailable):
    """Another broker serves this topic."""

    code = "not-owner"

    @property
    def address(self) -> str:
        """Where it is served, if that is known."""
        _, at, address = str(self).rpartition("by the broker at ")
        return address if at else ""


class Overtaken(Unavailable):
    """Another broker has changed the same thing in this moment: try again."""

    code = "overtaken"


class Stopping(Unavailable):
    """The broker shuts down. What it has not answered by now it has not carried out, and never will."""

    code = "stopping"


class Timeout(Unavailable):
    """No answer in time."""

    code = "timeout"


class Unreadable(Unavailable):
    """Stored bytes cannot be read now. They are not taken for lost: try again once the disk reads."""

    code = "unreadable"
    older_code = "timeout"


class ProtocolError(TowlineError):
    """The other side does not speak this protocol."""

    code = "protocol"


class Closed(TowlineError):
    """It was closed."""

    code = "closed"


def _tree(cls: type[TowlineError]) -> list[type[TowlineError]]:
    return [cls, *(sub for child in cls.__subclasses__() for sub in _tree(child))]


_BY_CODE: dict[str, type[TowlineError]] = {cls.code: cls for cls in _tree(TowlineError)}


def from_code(code: str, message: str, exact: str = "") -> TowlineError:
    """The error that `code` names, as it came over the wire, or `exact`, if that is known here; an unknown code becomes
    a plain `TowlineError`."""
    return (_BY_CODE.get(exact) or _BY_CODE.get(code, TowlineError))(message)
