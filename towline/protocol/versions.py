"""Versions of the protocol: requests, fields and values by version, and encoding for older peers.

`Hello` names the versions that a client speaks, `Welcome` the highest that both do. A message to an older peer is sent
without newer fields. They are of two kinds. A *hint* makes things better, and a peer that does not know it does
without: it is left out. What a request *means* is never left out: the request fails where it was made, with
`Unsupported`, whose text names the feature, the peer, and the version from which on it can.

A request or an answer says with which version it came (`newer`). Whoever adds a field to one, or a value of a field, or
makes one longer, adds it here;
`tests/unit/protocol/version-1.txt`, `limits-1.txt` and their like list what each released version has, and a test
compares.
Errors that are new say in `errors.py` what older peers take them for.
"""

from __future__ import annotations

import typing
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import FieldInfo, astuple, fields

from towline.alarms.rule import AlarmRule
from towline.errors import Unsupported
from towline.protocol import access, cluster, groups, publications
from towline.protocol import messages as m
from towline.protocol.base import Newer
from towline.version import __version__

__all__ = [
    "FIELDS",
    "LONGER",
    "RELEASED",
    "VALUES",
    "Longer",
    "in_words_of",
    "show_version",
    "structs_in",
]

RELEASED: Final = {1: "0.1.0"}
"""The first version of Towline with each version of the protocol. The contents of those that are not here may grow."""


_EPOCHS: Final = "compare the contents of a sink's epochs"

FIELDS: Final[dict[type[msgspec.Struct], dict[str, Newer]]] = {
    m.Hello: {"caller": Newer(2)},
    m.Attach: {"places": Newer(2)},
    m.Attached: {"places": Newer(2)},
    m.Beat: {"subscription": Newer(2), "holding": Newer(2)},
    m.Pull: {"scattered": Newer(2)},
    m.Part: {"runs": Newer(2)},
    m.Welcome: {"software": Newer(2)},
    m.Failed: {"exact": Newer(2)},
    groups.GroupState: dict.fromkeys(("unreadable", "retry_load", "unused_s", "expires_in_s"), Newer(2)),
    access.GroupFigures: dict.fromkeys(("unreadable", "retry_load", "expires_in_s"), Newer(2)),
    cluster.BrokerState: dict.fromkeys(("replaced", "software", "protocol", "format"), Newer(2)),
    cluster.ListBrokers: dict.fromkeys(("mark", "wait_ms"), Newer(2)),
    cluster.Brokers: dict.fromkeys(("realms", "mark"), Newer(2)),
    cluster.Met: {"backlog": Newer(2)},
    publications.Publish: {"digest": Newer(2, _EPOCHS), "members": Newer(2, _EPOCHS)},
    publications.SinkState: {"members": Newer(2)},
}
"""The last ones of each."""


class Longer(NamedTuple):
    """A text or list that may be longer since a version."""

    before: int
    newer: Newer


_LONG_SINK: Final = Longer(150, Newer(2, "hear of a sink with a name of more than 150 characters"))

LONGER: Final[dict[type[msgspec.Struct], dict[str, Longer]]] = {
    publications.Publish: {"sink": _LONG_SINK},
    publications.AskSink: {"sink": _LONG_SINK},
}

VALUES: Final[dict[type[msgspec.Struct], dict[str, dict[str, Newer]]]] = {
    AlarmRule: {
        "what": {
            "retention": Newer(2, "raise alarms of what holds retention back"),
            "store": Newer(2, "raise alarms of its store"),
        }
    }
}
"""Of fields with one of several values. An item with a value that a peer does not know is left out of lists that it is
sent."""


def show_version(version: int) -> str:
    """For people, with the version of Towline that it came with; an unreleased one comes with this one."""
    return f"version {version} of the protocol (Towline {RELEASED.get(version, __version__)})"


def in_words_of(version: int, message: m.Request | m.Answer) -> Any:
    """A message in the form that a peer of this version knows, to be encoded. Raises `Unsupported` where a request
    would not mean the same any more; its message begins with "cannot"."""
    is_request = isinstance(message, m.Request)
    if is_request:
        _refuse(message.newer, version)
    return _older(message, version, is_request)


def _refuse(newer: Newer | None, version: int) -> None:
    if newer is not None and newer.since > version and newer.what:
        raise Unsupported(f"cannot {newer.what}: that came with {show_version(newer.since)}")


class _Plan(NamedTuple):
    """The fields of a struct that a peer of some version knows."""

    known: tuple[str, ...]
    deep: frozenset[str]
    """Those of them with contents that it does not know."""
    newer: tuple[tuple[str, Newer, Any], ...]
    """Fields that it does not know, with their defaults."""
    values: dict[str, dict[str, Newer]]
    longer: dict[str, Longer]
    array: bool


def _older(value: Any, version: int, is_request: bool) -> Any:
    if isinstance(value, list | tuple):
        return [_older(one, version, is_request) for one in value if is_request or _is_known(one, version)]
    if isinstance(value, dict):
        return {key: _older(one, version, is_request) for key, one in value.items()}
    plan = _plan_of(value, version)
    if plan is None:
        return value
    if is_request:
        for name, newer, default in plan.newer:
            if newer.what and getattr(value, name) != default:
                _refuse(newer, version)
        for name, words in plan.values.items():
            _refuse(words.get(getattr(value, name)), version)
        for name, limit in plan.longer.items():
            if len(getattr(value, name)) > limit.before:
                _refuse(limit.newer, version)
    if plan.array and not plan.deep:
        return astuple(value)[: len(plan.known)]
    parts = {
        name: _older(part, version, is_request) if name in plan.deep else part
        for name, part in ((name, getattr(value, name)) for name in plan.known)
    }
    return list(parts.values()) if plan.array else parts


def _is_known(value: Any, version: int) -> bool:
    """Whether a peer knows all values of an item of a list."""
    plan = _plan_of(value, version)
    return plan is None or not any(getattr(value, name) in words for name, words in plan.values.items())


def _plan_of(value: Any, version: int) -> _Plan | None:
    kind: Any = type(value)
    return _plan(kind, version) if issubclass(kind, msgspec.Struct) else None


@cache
def _plan(cls: Any, version: int) -> _Plan | None:
    """None if a peer of this version knows all of it."""
    hints = typing.get_type_hints(cls)
    newer = {name: one for name, one in FIELDS.get(cls, {}).items() if one.since > version}
    inner = {name: structs_in(hints[name]) for name in cls.__struct_fields__}
    deep = frozenset(name for name, found in inner.items() if any(_plan(one, version) for one in found))
    values = {
        name: {word: one for word, one in words.items() if one.since > version}
        for name, words in VALUES.get(cls, {}).items()
    }
    longer = {name: one for name, one in LONGER.get(cls, {}).items() if one.newer.since > version}
    if not newer and not deep and not longer and not any(values.values()):
        return None
    known = tuple(name for name in cls.__struct_fields__ if name not in newer)
    dropped = tuple((one.name, newer[one.name], _default(one)) for one in fields(cls) if one.name in newer)
    return _Plan(known, deep, dropped, values, longer, cls.__struct_config__.array_like)


def structs_in(hint: Any) -> list[type[msgspec.Struct]]:
    """The structs in a type."""
    if isinstance(hint, type) and typing.get_origin(hint) is None and issubclass(hint, msgspec.Struct):
        return [hint]
    return [found for inner in typing.get_args(hint) for found in structs_in(inner)]


def _default(field: FieldInfo) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
