"""The containers that the broker, its stores and the console hold: found in the source, by the class or module that has
them. Left out are those of values that are made anew for each request: of a frozen class, a NamedTuple, an answer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "towline"
AREAS = ("alarms", "broker", "console", "delivery", "frame", "protocol", "store")
"""And the modules beside them."""
NAMES = {
    *(
        "ChainMap",
        "Counter",
        "Dying",
        "LifoQueue",
        "OrderedDict",
        "PartSet",
        "PriorityQueue",
        "Queue",
        "Ranges",
        "SimpleQueue",
    ),
    *("WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "array", "defaultdict", "deque", "dict", "fromkeys"),
    *("bytearray", "list", "set", "sorted"),
}
DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
CHANGES = {"add", "append", "appendleft", "extend", "insert", "put", "setdefault", "update"}
VALUES = {"BaseModel", "NamedTuple", "TypedDict", "Protocol"}


def containers() -> Iterator[str]:
    """`area.Class.attribute` for each that is set up as a container; `area.Class` for one that is itself one;
    `area.name` for one of a module that its functions change, or that remembers their answers without a limit."""
    paths = [path for area in AREAS for path in sorted((ROOT / area).rglob("*.py"))]
    for path in [*sorted(ROOT.glob("*.py")), *paths]:
        area = path.relative_to(ROOT).with_suffix("").parts[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield from (f"{area}.{name}" for name in sorted(_of_module(tree)))
        for one in ast.walk(tree):
            if isinstance(one, ast.ClassDef):
                name = f"{area}.{one.name}"
                if any(_named(base) in NAMES for base in one.bases):
                    yield name
                yield from (f"{name}.{attribute}" for attribute in sorted({*_attributes(one), *_fields(one)}))


def deques_with_a_length() -> Iterator[str]:
    """Of those, the ones that let go of the oldest by themselves."""
    for path in [path for area in AREAS for path in sorted((ROOT / area).rglob("*.py"))]:
        area = path.relative_to(ROOT).parts[0]
        for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(one, ast.ClassDef):
                yield from (f"{area}.{one.name}.{name}" for name in _with_a_length(one))


def _with_a_length(one: ast.ClassDef) -> Iterator[str]:
    for statement in ast.walk(one):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Call):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            has_length = any(key.arg == "maxlen" for key in statement.value.keywords)
            if isinstance(target, ast.Attribute) and _named(statement.value.func) == "deque" and has_length:
                yield target.attr


def _of_module(tree: ast.Module) -> Iterator[str]:
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    changed = {name for function in functions for name in _changed(function)}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if _is_container(statement.value) and _named(target) in changed:
                yield _named(target)
    for function in functions:
        if any(_is_endless_cache(decorator) for decorator in function.decorator_list):
            yield function.name


def _changed(function: ast.AST) -> Iterator[str]:
    """What a function puts something into, by its name."""
    for one in ast.walk(function):
        if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store):
            yield _plain(one.value)
        elif isinstance(one, ast.AugAssign):
            yield _plain(one.target)
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in CHANGES:
            yield _plain(one.func.value)


def _is_endless_cache(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        sizes = [*decorator.args, *(one.value for one in decorator.keywords if one.arg == "maxsize")]
        endless = any(isinstance(size, ast.Constant) and size.value is None for size in sizes)
        return _named(decorator.func) == "lru_cache" and endless
    return _named(decorator) == "cache"


def _fields(one: ast.ClassDef) -> Iterator[str]:
    """Of a Struct or a dataclass that may be changed."""
    marks = [
        *one.keywords,
        *(key for call in one.decorator_list if isinstance(call, ast.Call) for key in call.keywords),
    ]
    if any(_named(base) in VALUES for base in one.bases) or any(mark.arg == "frozen" for mark in marks):
        return
    for statement in one.body:
        if isinstance(statement, ast.AnnAssign) and _named(statement.annotation) in NAMES:
            yield _named(statement.target)


def _attributes(one: ast.ClassDef) -> Iterator[str]:
    for function in one.body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in ast.walk(function):
                if not isinstance(statement, ast.Assign | ast.AnnAssign):
                    continue
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                hint = statement.annotation if isinstance(statement, ast.AnnAssign) else None
                if _is_container(statement.value) or _is_hinted(hint):
                    own = (target for target in targets if isinstance(target, ast.Attribute))
                    yield from (target.attr for target in own if _named(target.value) == "self")


def _is_hinted(hint: ast.expr | None) -> bool:
    """Also as one that is not there yet: `list[str] | None`."""
    if isinstance(hint, ast.BinOp):
        return _is_hinted(hint.left) or _is_hinted(hint.right)
    return _named(hint) in NAMES


def _is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_container(value.left) or _is_container(value.right)
    return isinstance(value, DISPLAYS) or (isinstance(value, ast.Call) and _named(value.func) in NAMES)


def _plain(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _named(node: ast.expr | None) -> str:
    """The name of a class, also of one with parameters in brackets."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
