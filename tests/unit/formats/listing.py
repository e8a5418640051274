"""All that a broker stores, as text: what each number of `towline/format.py` covers.

`python -m tests.unit.formats.listing` writes it for the number that counts now, unless that was released.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import struct
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from tests.hints import text_of
from tests.house_rules import area_of
from towline import model
from towline.broker.access.rules import ROLES
from towline.format import FORMAT, NOTE, RELEASED, Note
from towline.frame import layout
from towline.model import GroupConfig, RetryPolicy, TopicConfig
from towline.protocol import access
from towline.store.eras import ERAS, Era
from towline.store.log.format import index, keys, record
from towline.store.sql.schema import tables

FOLDER = Path(__file__).parent
PACKAGES = ("towline.delivery", "towline.broker", "towline.alarms")
NOT_STORED = {
    "broker.Principal",
    "broker.Declared",
    "broker._File",
    "broker._Token",
    "broker.Holdings",
    "alarms.Reading",
    "alarms.Change",
    "alarms.Notice",
}
"""Structs of those packages that stay in memory, or are written by people; commands of groups do as well."""
DOCUMENT = re.compile(r'"([A-Za-z][A-Za-z0-9{}-]*\.(?:json|bin|jsonl))"')


def listing() -> str:
    """A line for each thing, sorted."""
    return "\n".join(sorted({*_flags(), *_layouts(), *_structs(), *_words(), *_documents(), *_columns()})) + "\n"


def path_of(number: int) -> Path:
    return FOLDER / f"format-{number}.txt"


def _modules() -> Iterator[ModuleType]:
    for name in PACKAGES:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            yield importlib.import_module(found.name)


def _flags() -> Iterator[str]:
    known = 0xFFFF & ~layout.UNKNOWN_FLAGS
    for name, value in vars(layout).items():
        is_flag = type(value) is int and value & known == value and value.bit_count() == 1
        if is_flag and name in layout.__all__ and name != "TOKEN_MAX":
            yield f"frame flag {value}: {name}"
    yield f"frame flags known: {known:#x}"


def _layouts() -> Iterator[str]:
    yield f"frame: magic {layout.MAGIC:#x}, header {layout.HEADER.format}"
    yield f"record: magic {record.MAGIC!r} or {record.VOID!r}, stamp {record.STAMP.format}"
    yield f"record kinds: {record.FRAME} a frame, {record.TRIM} a trim mark, {record.FORGET} a stream is forgotten"
    for module in (index, keys):
        for name, value in sorted(vars(module).items()):
            if isinstance(value, struct.Struct) or (name.endswith("MAGIC") and isinstance(value, bytes | int)):
                yield f"{module.__name__.rpartition('.')[2]} {name}: {getattr(value, 'format', value)}"


def _structs() -> Iterator[str]:
    roots: list[type] = [Note, TopicConfig, GroupConfig, RetryPolicy, keys.KeyRun, keys._Head]
    for module in _modules():
        if module.__name__ != "towline.delivery.group.commands":
            roots += [
                one
                for one in vars(module).values()
                if isinstance(one, type) and one.__module__ == module.__name__ and issubclass(one, msgspec.Struct)
            ]
    seen: set[type] = set()
    while roots:
        one = roots.pop()
        name = f"{area_of(one.__module__)}.{one.__qualname__}"
        if one in seen or name in NOT_STORED:
            continue
        seen.add(one)
        hints = typing.get_type_hints(one, include_extras=True)
        fields = one.__struct_fields__ if issubclass(one, msgspec.Struct) else one._fields  # type: ignore[attr-defined]
        roots += [part for field in fields for part in _parts(hints[field])]
        yield f"{name}{_kind(one)}: " + "; ".join(f"{field}: {text_of(hints[field])}" for field in fields)


def _kind(one: type) -> str:
    if not issubclass(one, msgspec.Struct):
        return " [tuple]"
    config = one.__struct_config__
    tag = "" if config.tag is None else f" {config.tag}"
    return f" [{'array' if config.array_like else 'map'}{tag}]"


def _parts(hint: Any) -> Iterator[type]:
    """The structs and tuples with names in a type."""
    ours = isinstance(hint, type) and hint.__module__.startswith("towline.")
    if ours and (issubclass(hint, msgspec.Struct) or hasattr(hint, "_fields")):
        yield hint
    for inner in typing.get_args(hint):
        yield from _parts(inner)


def _words() -> Iterator[str]:
    """Of fields that are any text as far as their struct goes."""
    for name, words in {"action": access.ACTIONS, "resource": access.RESOURCES, "role": ROLES}.items():
        yield f"words of {name}: {' '.join(sorted(words))}"


def _documents() -> Iterator[str]:
    yield f"document {NOTE}"
    yield f"document {ERAS}: {'; '.join(Era._fields)}"
    for module in [model, *_modules()]:
        for name in DOCUMENT.findall(Path(str(module.__file__)).read_text(encoding="utf-8")):
            yield f"document {name}"


def _columns() -> Iterator[str]:
    fixed = [*tables.FIXED.sorted_tables, tables.lane_table("TOPIC", "LANE"), tables.progress_table("TOPIC")]
    for table in fixed:
        yield f"table {table.name}: " + "; ".join(f"{column.name} {column.type}" for column in table.columns)


if __name__ == "__main__":
    if FORMAT in RELEASED and path_of(FORMAT).exists():
        sys.exit(f"format {FORMAT} was released with {RELEASED[FORMAT]}: raise FORMAT in towline/format.py first")
    path_of(FORMAT).write_text(listing(), encoding="utf-8")
