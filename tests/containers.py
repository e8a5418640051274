"""The containers that objects of the broker and its stores hold: found in the source, by the class that has them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "towline"
PACKAGES = ("alarms", "broker", "delivery", "store", "store/log", "store/sql")
NAMES = {
    *("Counter", "OrderedDict", "PartSet", "Ranges", "array", "defaultdict", "deque", "dict", "fromkeys", "list", "set")
}
DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)


def containers() -> Iterator[str]:
    """`module.Class.attribute` for each that is set up as a container; `module.Class` for one that is itself one."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).glob("*.py")):
            for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(one, ast.ClassDef):
                    name = f"{package.replace('/', '.')}.{path.stem}.{one.name}"
                    if any(_named(base) in NAMES for base in one.bases):
                        yield name
                    yield from (f"{name}.{attribute}" for attribute in sorted(set(_attributes(one))))


def _attributes(one: ast.ClassDef) -> Iterator[str]:
    for function in one.body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in ast.walk(function):
                if not isinstance(statement, ast.Assign | ast.AnnAssign):
                    continue
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                hint = statement.annotation if isinstance(statement, ast.AnnAssign) else None
                if _is_container(statement.value) or _named(hint) in NAMES:
                    own = (target for target in targets if isinstance(target, ast.Attribute))
                    yield from (target.attr for target in own if _named(target.value) == "self")


def _is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_container(value.left) or _is_container(value.right)
    return isinstance(value, DISPLAYS) or (isinstance(value, ast.Call) and _named(value.func) in NAMES)


def _named(node: ast.expr | None) -> str:
    """The name of a class, also of one with parameters in brackets."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
