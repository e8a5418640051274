"""The rules that `test_architecture.py` holds the package to.

Every check is a pure function from source text to a list of violations, so that each is also tried on a bad example.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

GROUND = {"model", "errors", "clock", "connection_limit", "files", "format", "log_lines", "version"}

# What each area of the package may import, besides itself. An area that is not listed is a tool at the very top: it may
# import everything, and nothing that is listed may import it.
MAY_IMPORT: dict[str, set[str]] = {
    "model": GROUND,
    "errors": GROUND,
    "clock": GROUND,
    "connection_limit": GROUND,
    "files": GROUND,
    "log_lines": GROUND,
    "version": GROUND,
    "settings": GROUND,
    "alarms": GROUND,
    "frame": GROUND,
    "delivery": GROUND | {"frame"},
    "store": GROUND | {"frame"},
    "protocol": GROUND | {"frame", "alarms"},
    "broker": GROUND | {"settings", "frame", "delivery", "store", "protocol", "alarms"},
    "client": GROUND | {"settings", "frame", "protocol", "alarms"},
    # What a client's calls answer is made of the protocol's structs.
    "console": GROUND | {"frame", "client", "towline", "protocol", "alarms"},
    "spark": GROUND | {"frame", "client", "towline"},
}

# Single modules that may see one thing more than their area.
EXCEPTIONS: dict[str, set[str]] = {
    "towline.client.embedded": {"towline.broker"},
    "towline.spark": {
        "towline.store.log",
        "towline.delivery.group.events",
        # What a folder's documents do not have yet.
        "towline.delivery.catalog_changes",
        # What a folder's schedule holds is found as a broker that starts finds it.
        "towline.delivery.schedule.record",
        "towline.delivery.schedule.schedule",
        "towline.delivery.schedule.events",
        "towline.delivery.schedule.wheel",
    },
}

# Within an area, folders and the modules beside them in layers, from the bottom: at run time each may import what is
# in its own layer or before it. What is not named here is below all.
LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "broker": (
        ("access",),
        ("topics",),
        ("schedule",),
        ("consume",),
        ("produce", "retention", "browse"),
        ("monitor",),
        ("broker",),
        ("node", "cluster"),
        ("server",),
        ("process",),
    ),
    "client": (
        ("link",),
        ("consume", "produce", "requests", "results"),
        ("options", "embedded"),
        ("cluster",),
        ("admin",),
        ("_sync", "_async"),
        ("app", "bulk"),
    ),
    "delivery": (("group", "producers", "dedup", "transactions", "publications"), ("schedule",)),
    "spark": (("data_source", "batch_reader", "stream_reader", "writer"), ("jobs",)),
    "console": (
        ("layout",),
        ("security", "widgets", "dead_letters"),
        ("lists", "downloads"),
        ("pages", "rest"),
        ("app",),
        ("process",),
    ),
}
# Those that go the other way all the same. This list gets shorter.
BACKWARDS = {
    # A broker knows who else is in its cluster: membership belongs to the node.
    ("towline.broker.broker", "towline.broker.cluster"),
}

PUBLIC = {"towline"} | {f"towline.{name}" for name in ("__main__", "aio", "cli", "errors", "model", "spark")}
"""What tests use as programs do; all else of the package goes through `tests/inside`, so that a module can move."""
FLAT = {"towline.cli", "towline.protocol", "towline.console.pages"}
"""Where a file is a command, a noun of the wire, a page."""
MODULES_MAX = 14
LINES_OF_A_FUNCTION_MAX = 70
GLOSSARY = {"blocking", "encoding", "listing", "monitoring", "opening", "routing", "sharding", "staging"}
"""Nouns of the field that look like verbs."""

WAITING = {"asyncio", "multiprocessing", "select", "selectors", "socket", "ssl", "subprocess", "threading", "uvloop"}
FORBIDDEN_MODULES: dict[str, set[str]] = {
    "delivery": WAITING | {"os", "pathlib", "random", "secrets", "shutil", "tempfile", "time"},
    "protocol": WAITING | {"random", "time"},
    "alarms": WAITING | {"os", "pathlib", "random", "secrets", "smtplib", "time"},
    "frame": WAITING | {"random", "time"},
}

VAGUE = {"common", "helper", "helpers", "misc", "util", "utils"}
UNSAFE_MODULES = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "os.popen", "os.system", "yaml.load", "yaml.unsafe_load"}

Sources = Mapping[str, str]
"""Source text by dotted name; a package goes by its own name, without `__init__`."""


def read_sources(root: Path, package: str) -> dict[str, str]:
    sources = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return sources


def packages_in(sources: Sources) -> set[str]:
    return {name.rpartition(".")[0] for name in sources} | {"towline"}


@cache
def parsed(source: str) -> ast.Module:
    """The tree of a source, which many rules look at and none changes."""
    return ast.parse(source)


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(source)))


# --- what a module imports --------------------------------------------------------------------------------------------

MODULE_STRING = re.compile(r"towline(\.\w+)*(:\w+)?")


def imports_of(name: str, source: str, *, modules: Iterable[str] = (), is_package: bool = False) -> set[str]:
    """Everything the module imports, anywhere in it, by full dotted name.

    `from a import b` counts as `a.b` where that is one of `modules`, else as `a`.
    """
    known = set(modules)
    found: set[str] = set()
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(name, node, is_package=is_package)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in known else base)
    return found | _imports_by_string(nodes_of(source))


def _base_of(name: str, node: ast.ImportFrom, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = name.split(".")
    parts = parts[: max(1, len(parts) - node.level + is_package)]
    return ".".join([*parts, node.module] if node.module else parts)


def _imports_by_string(nodes: Sequence[ast.AST]) -> set[str]:
    """Modules given to `import_module`, and entry points such as "towline.cli.topics:app".

    Where `import_module` is called with a variable, every string that looks like a module of ours may be meant.
    """
    calls = [node for node in nodes if isinstance(node, ast.Call) and _dotted(node.func).endswith("import_module")]
    named = {arg.value for call in calls for arg in call.args[:1] if isinstance(arg, ast.Constant)}
    by_variable = any(call.args and not isinstance(call.args[0], ast.Constant) for call in calls)
    found = {text for text in named if isinstance(text, str)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_STRING.fullmatch(node.value):
            module, colon, _ = node.value.partition(":")
            if colon or by_variable:
                found.add(module)
    return found


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def all_imports(sources: Sources) -> dict[str, set[str]]:
    packages = packages_in(sources)
    return {
        name: imports_of(name, source, modules=sources, is_package=name in packages) for name, source in sources.items()
    }


# --- the checks -------------------------------------------------------------------------------------------------------


def area_of(module: str) -> str:
    """`towline.store.log.format.segment` is in `store`; the package itself is the area `towline`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def wrong_directions(sources: Sources) -> list[str]:
    return [
        f"{name} imports {target}"
        for name, targets in all_imports(sources).items()
        for target in sorted(targets)
        if _is_within(target, "towline") and not _may_import(name, target)
    ]


def _may_import(name: str, target: str) -> bool:
    area = area_of(name)
    if name == "towline" or area not in MAY_IMPORT or area_of(target) in MAY_IMPORT[area] | {area}:
        return True
    return any(
        _is_within(name, module) and _is_within(target, allowed)
        for module, extras in EXCEPTIONS.items()
        for allowed in extras
    )


def impure_imports(sources: Sources) -> list[str]:
    return [
        f"{name} imports {target}"
        for name, targets in all_imports(sources).items()
        for target in sorted(targets)
        if target.partition(".")[0] in FORBIDDEN_MODULES.get(area_of(name), set())
    ]


def is_entry_point(module: str) -> bool:
    return re.fullmatch(r"towline(\.(__main__|cli\w*|demo(\.__main__)?))?", module) is not None


def dead_modules(sources: Sources, entered: Iterable[str] = ()) -> list[str]:
    """Modules that no entry point reaches; `entered` are reached from outside the package."""
    imports = all_imports(sources)
    waiting = [name for name in sources if is_entry_point(name)] + list(entered)
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(imports.get(name, ()))
            waiting.append(name.rpartition(".")[0])
    return sorted(set(sources) - reached)


def export_faults(name: str, source: str) -> list[str]:
    """What is wrong with `__all__`, if there is one. The order is ruff's: CONSTANTS, then Classes, then the rest."""
    tree = parsed(source)
    faults = []
    for node in tree.body:
        if not (isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and "__all__" in _bound_by(node)):
            continue
        try:
            exported = list(ast.literal_eval(node.value)) if node.value else []
        except ValueError:
            faults.append(f"{name}: __all__ is not a plain list of strings")
            continue
        if exported != sorted(set(exported), key=_export_order):
            faults.append(f"{name}: __all__ is not sorted")
        bound = set(_bound_names(tree))
        if not bound & {"*", "__getattr__"}:
            faults.extend(f"{name}: {item} is in __all__ but does not exist" for item in exported if item not in bound)
    return faults


def _export_order(item: str) -> tuple[int, list[tuple[int, str]]]:
    kind = 0 if len(item) > 1 and item.isupper() else 1 if item[:1].isupper() else 2
    return kind, [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", item)]


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Names bound at the top level of a module, also inside `if`, `try` and `with`."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield from _bound_by(node)
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.ExceptHandler):
            waiting.extend(ast.iter_child_nodes(node))


def _bound_by(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=aliases):
            return [alias.asname or alias.name.partition(".")[0] for alias in aliases]
        case ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.For():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return []


def vague_names(modules: Iterable[str]) -> list[str]:
    return [module for module in modules if module.rpartition(".")[2].strip("_") in VAGUE]


def unsafe_code(name: str, source: str) -> list[str]:
    found = [f"{name} imports {module}" for module in imports_of(name, source) if module in UNSAFE_MODULES]
    for node in nodes_of(source):
        if isinstance(node, ast.Call):
            call = _dotted(node.func)
            if call in UNSAFE_CALLS:
                found.append(f"{name}:{node.lineno} calls {call}")
            if any(keyword.arg == "shell" and not _is_false(keyword.value) for keyword in node.keywords):
                found.append(f"{name}:{node.lineno} runs a shell")
    return found


OPEN_TO_OTHERS = {"towline.files", "towline.spark.jobs.archive.archive_folder"}
"""Makes them as they should be; and archives, which are there for others."""


def open_files(name: str, source: str) -> list[str]:
    """Files that are made with whatever mode the umask leaves them, instead of by `open_private`."""
    if name in OPEN_TO_OTHERS or area_of(name) in {"demo", "load"}:
        return []
    found = []
    for node in nodes_of(source):
        if isinstance(node, ast.Call):
            call, text = _dotted(node.func), ast.unparse(node)
            given = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            by_mode = call.endswith("open") and any(re.fullmatch(r"[wax]b?\+?|r\+b?", mode) for mode in given)
            private = "open_private(" in text or (call == "os.fdopen" or given[:1] == ["/dev/null"])
            whole = call.endswith((".write_text", ".write_bytes", ".touch"))
            if (by_mode and not private) or (call == "os.open" and "O_CREAT" in text) or (whole and "path" in text):
                found.append(f"{name}:{node.lineno} makes a file that others may read: use towline.files")
    return found


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def wrong_layers(sources: Sources) -> list[str]:
    """Imports at run time of a folder that stands in a higher layer of the same area."""
    packages = packages_in(sources)
    return [
        f"{name} imports {target}"
        for name, source in sources.items()
        for target in sorted(imports_of(name, at_run_time(source), modules=sources, is_package=name in packages))
        if _is_upwards(name, target)
    ]


def _is_upwards(name: str, target: str) -> bool:
    area = area_of(name)
    if area not in LAYERS or area_of(target) != area or name.count(".") < 2 or _exempt(name, target):
        return False
    return _layer(target) > _layer(name)


def _exempt(name: str, target: str) -> bool:
    return any(name == one and _is_within(target, other) for one, other in BACKWARDS)


def _layer(module: str) -> int:
    parts = module.split(".")
    found = [number for number, names in enumerate(LAYERS[parts[1]], 1) if len(parts) > 2 and parts[2] in names]
    return found[0] if found else 0


def at_run_time(source: str) -> str:
    """The source without what is for type checkers only, and without imports inside functions."""
    tree = ast.parse(source)
    tree.body = [
        one
        for one in tree.body
        if not (isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING")
        and isinstance(one, ast.Import | ast.ImportFrom | ast.Try | ast.If)
    ]
    return ast.unparse(tree)


def past_the_facade(tests: Sources, modules: Iterable[str]) -> list[str]:
    """What tests outside `tests/unit` import or patch from below the public API, past `tests/inside`."""
    return [
        f"{name} uses {target}"
        for name, source in tests.items()
        if not any(_is_within(name, open_to) for open_to in ("tests.unit", "tests.inside"))
        for target in sorted(imports_of(name, source, modules=modules) | _patched_in(source))
        if _is_within(target, "towline") and target not in PUBLIC
    ]


def _patched_in(source: str) -> set[str]:
    """The names that `monkeypatch.setattr` and its like get as strings."""
    calls = [node for node in nodes_of(source) if isinstance(node, ast.Call) and node.args]
    firsts = [call.args[0] for call in calls if _dotted(call.func).endswith((".setattr", ".delattr"))]
    texts = [first.value for first in firsts if isinstance(first, ast.Constant) and isinstance(first.value, str)]
    return {text for text in texts if re.fullmatch(r"towline(\.\w+){2,}", text)}


def crowded_folders(sources: Sources) -> list[str]:
    """Folders of more modules than one sees at a glance."""
    packages = packages_in(sources)
    folders = Counter(name if name in packages else name.rpartition(".")[0] for name in sources)
    return [f"{name}: {count}" for name, count in folders.items() if count > MODULES_MAX and name not in FLAT]


METAPHORS = {
    "agenda",
    "burial",
    "census",
    "commons",
    "companion",
    "desk",
    "errand",
    "escrow",
    "fan",
    "fleet",
    "flows",
    "front",
    "obituary",
    "outlook",
    "pace",
    "parcel",
    "places",
    "plainly",
    "shelf",
    "shield",
    "sifting",
    "standing",
    "terms",
    "undertaking",
    "verdict",
    "wishes",
    "words",
}
"""Pictures that modules were named by once."""


def verbs_as_names(modules: Iterable[str]) -> list[str]:
    """Modules that are named by what they do, or by a picture, instead of by what they are."""
    lasts = ((module, module.rpartition(".")[2]) for module in modules)
    return [
        module
        for module, last in lasts
        if (last.endswith("ing") and last.rpartition("_")[2] not in GLOSSARY) or last in METAPHORS
    ]


RIDDLE = re.compile(r"(What|Who|Where|How|When|Why|Whose|Which) ")
FOR_PEOPLE = ("towline.cli", "towline.console.rest")
"""Where the docstrings of classes are shown: help of commands, descriptions in the OpenAPI document."""


RIDDLES_LEFT = {"Context", "Opening", "Transacting", "_Gathering"}
"""Classes that are yet to be named. This list gets shorter."""


def riddles(name: str, source: str) -> list[str]:
    """Docstrings of modules and classes that go round the noun instead of naming it."""
    found = [name] if RIDDLE.match(ast.get_docstring(parsed(source)) or "") else []
    if any(_is_within(name, one) for one in FOR_PEOPLE):
        return found
    classes = [node for node in nodes_of(source) if isinstance(node, ast.ClassDef)]
    left = [one.name for one in classes if RIDDLE.match(ast.get_docstring(one) or "")]
    return found + [f"{name}:{one}" for one in left if one not in RIDDLES_LEFT]


UNMAPPED = FLAT | {"towline", "towline.client._async", "towline.client._sync"}
"""Where the names of the modules are the map; and the two clients, which are mapped with the whole client."""


def unmapped(sources: Sources) -> list[str]:
    """Modules and folders that the map in their package's docstring does not name."""
    found = []
    for name in sorted(packages_in(sources) & set(sources) - UNMAPPED):
        words = set(re.findall(r"\w+", ast.get_docstring(ast.parse(sources[name])) or ""))
        parts = {one.rpartition(".")[2] for one in sources if one.rpartition(".")[0] == name} - {"__main__"}
        found += [f"{name}.{part}" for part in sorted(parts - words)]
    return found


def long_functions(name: str, source: str) -> list[str]:
    return [
        f"{name}:{node.lineno} {node.name}"
        for node in nodes_of(source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LINES_OF_A_FUNCTION_MAX
    ]
