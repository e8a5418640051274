"""Errors of the database: whether to try again, on another connection, or to give up.

Whole transactions are tried again, never single statements. Whether a transaction whose COMMIT got no answer took place
is found out by its unit's number, see `ownership`.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from asyncmy.errors import MySQLError

from towline.errors import BadRequest, DiskFull, Refused, StoreFailed, TooLarge, TowlineError, Unavailable

__all__ = [
    "DENIED",
    "DUPLICATE",
    "NOT_ENCRYPTED",
    "PACKET",
    "Fault",
    "classify",
    "code_of",
    "explain",
    "in_words",
    "missing_right",
]

_AGAIN: Final = {
    1020: "a row changed since it was read",
    1180: "a commit failed",
    1205: "waited too long for a lock",
    1213: "deadlock, or refused by the other nodes of the cluster",
    1317: "the statement was interrupted",
    3101: "refused by the other members of the group",
    8002: "TiDB: a conflict found at commit",
    8022: "TiDB: the commit failed and may be tried again",
    8028: "TiDB: the schema changed meanwhile",
    9007: "TiDB: a conflict of writers",
}
_ELSEWHERE: Final = {
    1040: "too many connections",
    1043: "the handshake failed",
    1047: "the node is not part of the cluster at the moment",
    1053: "the server is shutting down",
    1077: "the server was shut down",
    1159: "the server could not read in time",
    1160: "the server could not write",
    1161: "the server could not write in time",
    1203: "too many connections of this user",
    1290: "the server only reads at the moment",
    1792: "the server only reads at the moment",
    1836: "the server only reads at the moment",
    1927: "the connection was killed",
    2002: "cannot connect",
    2003: "cannot connect",
    2006: "the server has gone away",
    2013: "the connection was lost",
    2014: "the connection is out of step",
    2055: "the connection was lost",
    3024: "the statement took too long",
    3032: "the server is offline at the moment",
    3100: "the group of servers does not take it at the moment",
    3169: "the connection was killed",
    4031: "the server ended a connection that was silent",
    9001: "TiDB: its timestamps cannot be had",
    9002: "TiDB: a storage node does not answer",
    9005: "TiDB: a region is not available",
}
DUPLICATE: Final = 1062
_FULL: Final = {3, 28, 1021, 1041, 1114}
PACKET: Final = 1153
_TOO_LARGE: Final = {
    1118: "the row is too large",
    PACKET: "the statement is over max_allowed_packet",
    1301: "a value is over max_allowed_packet",
    1406: "a value is longer than its column",
    8004: "TiDB: the transaction is too large",
    8025: "TiDB: the row is over txn-entry-size-limit",
}
DENIED: Final = {1142, 1143, 1227, 1370, 8121}
"""The user lacks a right."""
NOT_ENCRYPTED: Final = 2061
"""Drivers report this for a password that the server wants over an encrypted connection only."""
_ENCRYPTED_ONLY: Final = {NOT_ENCRYPTED, 3159}
_LOGIN: Final = {1044, 1045, 1049, 1129, 1130, 1251, 1698, 1820, 1862, 3118, 3955, 4151, *_ENCRYPTED_ONLY}

_DENIED_SAYS: Final = re.compile(r"([A-Z]+(?: [A-Z]+)*) command denied|privilege check for '([A-Za-z ]+)' fail")


class Fault(enum.Enum):
    AGAIN = "again"
    """The transaction was rolled back: do it again."""
    ELSEWHERE = "elsewhere"
    """The connection is of no more use, and the outcome of its transaction is not known."""
    FULL = "full"
    """The database has no room; it may have again later."""
    LOGIN = "login"
    """The database does not let us in."""
    DENIED = "denied"
    """The user lacks a right; it may be granted later."""
    TOO_LARGE = "too large"
    """One of the rows is: its job is refused, and the rest done again."""
    FINAL = "final"
    """Trying again would not help."""


def code_of(error: BaseException) -> int:
    """The number of an error of the database, 0 if it has none."""
    if isinstance(error, MySQLError) and error.args and isinstance(error.args[0], int):
        return error.args[0]
    return 0


def classify(error: BaseException) -> Fault:
    code = code_of(error)
    if code in _AGAIN:
        return Fault.AGAIN
    if code in _TOO_LARGE:
        return Fault.TOO_LARGE
    if code in _FULL:
        return Fault.FULL
    if code in _LOGIN:
        return Fault.LOGIN
    if code in DENIED:
        return Fault.DENIED
    if code in _ELSEWHERE or isinstance(error, (OSError, EOFError, TimeoutError)):
        return Fault.ELSEWHERE
    if isinstance(error, MySQLError) and not code:
        return Fault.ELSEWHERE
    return Fault.FINAL


def missing_right(error: BaseException) -> str:
    """The privilege that an error names as missing, as in GRANT; empty if it names none."""
    found = _DENIED_SAYS.match(str(error.args[1])) if code_of(error) in DENIED and len(error.args) > 1 else None
    return (found[1] or found[2]).upper() if found is not None else ""


def in_words(error: BaseException) -> str:
    code = code_of(error)
    known = _AGAIN.get(code) or _ELSEWHERE.get(code) or _TOO_LARGE.get(code)
    said = str(error.args[1]) if code and len(error.args) > 1 else f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{known or 'error'} ({code}: {said})" if code else said


def explain(error: BaseException, label: str) -> TowlineError:
    """The same error as ours."""
    if isinstance(error, TowlineError):
        return error
    match classify(error):
        case Fault.FULL:
            return DiskFull(f"the database {label} has no room: {in_words(error)}. Free some, or shorten the retention")
        case Fault.TOO_LARGE:
            return TooLarge(
                f"the database {label} does not take it: {in_words(error)}. Send smaller messages, or raise that limit"
            )
        case Fault.LOGIN:
            return _locked_out(error, label)
        case Fault.DENIED:
            right = missing_right(error) or "that"
            return Refused(
                f"the broker's user lacks the right {right} in the database {label}, let an administrator grant it: "
                f"{in_words(error)}"
            )
        case Fault.FINAL:
            return StoreFailed(f"the database {label} failed: {in_words(error)}")
        case Fault.ELSEWHERE:
            return _unreachable(error, label)
        case _:
            return Unavailable(f"the database {label} cannot be used at the moment: {in_words(error)}. Try again later")


def _locked_out(error: BaseException, label: str) -> TowlineError:
    code = code_of(error)
    if code == 1049:
        return BadRequest(f"the database {label} does not exist: create it first, or correct the name")
    if code in _ENCRYPTED_ONLY:
        return Refused(
            f"the database {label} lets the broker in only over an encrypted connection: name the certificates that "
            f"are to vouch for the server's, --store-tls-ca FILE ({in_words(error)})"
        )
    return Refused(
        f"the database {label} refuses to let the broker in: {in_words(error)}. Check the user and "
        "--store-password-file, and whether it wants an encrypted connection (--store-tls-ca)"
    )


def _unreachable(error: BaseException, label: str) -> TowlineError:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return Unavailable(
            f"the database {label} has a certificate that does not fit: it must name the host as the URL does, and "
            f"those in --store-tls-ca must vouch for it ({in_words(error)}). The one that MySQL makes for itself names "
            "no host: give the server another one"
        )
    return Unavailable(f"the database {label} cannot be reached: {in_words(error)}. Try again when it is back")
