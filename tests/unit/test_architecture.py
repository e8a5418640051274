"""The style that matters, as tests: import directions, dead modules, `__all__`, names, sizes and forbidden calls."""

from __future__ import annotations

import importlib

import pytest

from tests.house_rules import (
    MAY_IMPORT,
    ROOT,
    crowded_folders,
    dead_modules,
    export_faults,
    imports_of,
    impure_imports,
    long_functions,
    open_files,
    past_the_facade,
    read_sources,
    riddles,
    unmapped,
    unsafe_code,
    vague_names,
    verbs_as_names,
    wrong_directions,
    wrong_layers,
)

# --- the package passes them ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return read_sources(ROOT, "towline")


def test_imports_point_one_way(sources: dict[str, str]) -> None:
    assert wrong_directions(sources) == []


def test_delivery_protocol_and_frame_do_no_io(sources: dict[str, str]) -> None:
    assert impure_imports(sources) == []


def test_every_module_is_reached_from_an_entry_point(sources: dict[str, str]) -> None:
    spark_finds = read_sources(ROOT, "pyspark_towline")
    entered = {target for name, source in spark_finds.items() for target in imports_of(name, source, modules=sources)}
    assert dead_modules(sources, entered) == []


def test_every_all_is_sorted_and_true(sources: dict[str, str]) -> None:
    assert [fault for name, source in sources.items() for fault in export_faults(name, source)] == []


def test_every_public_name_can_be_had() -> None:
    package = importlib.import_module("towline")
    assert [name for name in getattr(package, "__all__", ()) if not hasattr(package, name)] == []


def test_every_module_has_a_telling_name(sources: dict[str, str]) -> None:
    assert vague_names(sources) == []


def test_folders_of_an_area_import_one_way(sources: dict[str, str]) -> None:
    assert wrong_layers(sources) == []


def test_no_folder_is_crowded(sources: dict[str, str]) -> None:
    assert crowded_folders(sources) == []


def test_modules_are_named_by_nouns_and_their_docstrings_name_the_thing(sources: dict[str, str]) -> None:
    assert verbs_as_names(sources) == []
    assert [name for module, source in sources.items() for name in riddles(module, source)] == []


def test_every_package_has_a_map_of_its_modules(sources: dict[str, str]) -> None:
    assert unmapped(sources) == []


def test_tests_of_the_whole_go_through_one_facade_a_package(sources: dict[str, str]) -> None:
    assert past_the_facade(read_sources(ROOT, "tests"), sources) == []


def test_functions_fit_on_a_screen(sources: dict[str, str]) -> None:
    assert [name for module, source in sources.items() for name in long_functions(module, source)] == []


def test_no_module_does_anything_unsafe(sources: dict[str, str]) -> None:
    assert [fault for name, source in sources.items() for fault in unsafe_code(name, source)] == []


def test_every_file_is_made_for_its_owner(sources: dict[str, str]) -> None:
    assert [fault for name, source in sources.items() for fault in open_files(name, source)] == []


# --- and the checks can fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("towline.model", "import towline.frame"),
        ("towline.frame.layout", "from towline.store import spi"),
        ("towline.settings", "from towline.frame import layout"),
        ("towline.store.spi", "from towline.settings import Settings"),
        ("towline.store.memory", "from towline.delivery.queue import Queue"),
        ("towline.store.log.segment", "from ...protocol import wire"),
        ("towline.delivery.queue", "def f():\n    from towline.store import spi"),
        ("towline.delivery.queue", "import towline"),
        ("towline.protocol.wire", "if TYPE_CHECKING:\n    from towline.delivery import queue"),
        ("towline.broker.server", "from towline.client import aio"),
        ("towline.broker.server", "from towline.doctor import look"),
        ("towline.client.aio", "import importlib\nimportlib.import_module('towline.broker.broker')"),
        ("towline.client.aio", "from towline.store.log import reader"),
        ("towline.client.embedded_not", "from towline.broker import broker"),
        ("towline.console.app", "from towline.broker import broker"),
        ("towline.spark.source", "from towline.store import memory"),
    ],
)
def test_a_wrong_import_is_found(name: str, source: str) -> None:
    others = ["towline", "towline.store", "towline.store.spi", "towline.store.memory", "towline.broker.broker"]
    assert wrong_directions(dict.fromkeys(others, "") | {name: source}) != []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("towline", "from towline.client.blocking import connect"),
        ("towline.model", "from towline import errors, clock"),
        ("towline.store.log.segment", "from . import reader\nfrom ..spi import Store\nfrom ...frame import layout"),
        ("towline.broker.broker", "from towline import delivery, settings, store"),
        ("towline.client.aio", "from towline import errors\nfrom towline.client.embedded import Embedded"),
        ("towline.client.embedded", "from towline.broker.broker import Broker"),
        ("towline.console.app", "import towline"),
        ("towline.spark.source", "from towline.store.log.reader import read\nimport pyspark"),
        ("towline.doctor", "from towline.store.log import segment"),
    ],
)
def test_a_right_import_is_left_alone(name: str, source: str) -> None:
    others = [f"towline.{area}" for area in [*MAY_IMPORT, "store.log"]]
    assert wrong_directions(dict.fromkeys(["towline", *others], "") | {name: source}) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("towline.delivery.queue", "import os.path"),
        ("towline.delivery.queue", "from time import time"),
        ("towline.delivery", "def f():\n    import random"),
        ("towline.protocol.wire", "from asyncio import Future"),
        ("towline.frame", "import socket"),
    ],
)
def test_io_in_a_pure_area_is_found(name: str, source: str) -> None:
    assert impure_imports({name: source}) != []


@pytest.mark.parametrize(
    "source",
    ["os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)", "path.open('wb')", "open(path, 'a')", "path.write_text('x')"],
)
def test_a_file_that_others_may_read_is_found(source: str) -> None:
    assert open_files("towline.store.log.segment", source) != []


@pytest.mark.parametrize(
    "source",
    [
        "os.open(path, os.O_RDONLY)",
        "path.open('rb')",
        "open(open_private(path, os.O_WRONLY | os.O_CREAT), 'wb')",
        "client.open('orders')",
    ],
)
def test_other_ways_to_open_are_left_alone(source: str) -> None:
    assert open_files("towline.store.log.segment", source) == []


def test_io_elsewhere_is_left_alone() -> None:
    assert impure_imports({"towline.broker.server": "import asyncio", "towline.delivery.time": "import bisect"}) == []


def test_a_dead_module_is_found() -> None:
    sources = {
        "towline": "from towline.client import connect",
        "towline.client": "from .aio import connect",
        "towline.client.aio": "def f():\n    from towline.broker import server",
        "towline.broker": "",
        "towline.broker.server": "",
        "towline.broker.forgotten": "from towline.broker import server",
        "towline.cli": "app.command('towline.cli_topics:app')\nimport_module('towline.console')",
        "towline.cli_topics": "",
        "towline.console": "JOBS = {'report': 'towline.report'}\nimport_module(JOBS[name])\n",
        "towline.report": "getLogger('towline.logged')",
        "towline.logged": "",
        "towline.spark": "",
    }
    assert dead_modules(sources) == ["towline.broker.forgotten", "towline.logged", "towline.spark"]
    assert dead_modules(sources, ["towline.spark"]) == ["towline.broker.forgotten", "towline.logged"]


@pytest.mark.parametrize(
    "source",
    [
        "__all__ = ['b', 'a']\na = b = 1",
        "__all__ = ['a', 'a']\na = 1",
        "__all__ = ['a', 'B']\na = B = 1",
        "__all__ = ['gone']",
        "__all__ = [*names]",
        "__all__: list[str] = ['f']\nclass C:\n    def f(self): ...",
    ],
)
def test_a_faulty_all_is_found(source: str) -> None:
    assert export_faults("m", source) != []


@pytest.mark.parametrize(
    "source",
    [
        "__all__ = ['MAX_US', 'A', 'Bee', 'c2', 'c10', 'f']\nA, (Bee, MAX_US) = 1, (2, 3)\nimport c2, c10\nf = 4",
        "try:\n    import x as a\nexcept ImportError:\n    a = None\n__all__ = ['a']",
        "__all__ = ['later']\ndef __getattr__(name): ...",
        "from x import *\n__all__ = ['y']",
        "x = 1",
    ],
)
def test_a_good_all_is_left_alone(source: str) -> None:
    assert export_faults("m", source) == []


def test_a_vague_name_is_found() -> None:
    assert vague_names(["towline.utils", "towline.store._helpers", "towline.store.log"]) == [
        "towline.utils",
        "towline.store._helpers",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "yaml.load(text)",
        "run(command, shell=True)",
        "run(command, shell=flag)",
        "eval('1')",
        "def f():\n    exec(code)",
        "os.system('ls')",
    ],
)
def test_unsafe_code_is_found(source: str) -> None:
    assert unsafe_code("m", source) != []


def test_safe_code_is_left_alone() -> None:
    assert unsafe_code("m", "yaml.safe_load(text)\nrun(command, shell=False)\nquery.exec()\nimport os") == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("towline.broker.topics.topic", "from towline.broker.consume.dispatcher import Dispatcher"),
        ("towline.broker.broker", "from towline.broker.node import Node"),
        ("towline.client.link.aio", "from towline.client.admin import topics"),
    ],
)
def test_an_import_of_a_higher_folder_is_found(name: str, source: str) -> None:
    assert wrong_layers({name: source}) != []
    assert wrong_layers({name: f"if TYPE_CHECKING:\n    {source}"}) == [], "a name for type checkers is none"


def test_a_crowded_folder_a_verb_a_riddle_and_a_long_function_are_found() -> None:
    assert crowded_folders({f"towline.broker.x{number}": "" for number in range(15)}) != []
    assert crowded_folders({f"towline.cli.x{number}": "" for number in range(15)}) == []
    assert verbs_as_names(["towline.broker.delivering", "towline.client.sharding"]) == ["towline.broker.delivering"]
    assert verbs_as_names(["towline.broker.obituary"]) != []
    assert riddles("towline.x", '"""What becomes of it."""') != []
    assert riddles("towline.x", 'class A:\n    """Where it goes."""') == ["towline.x:A"]
    assert riddles("towline.cli.x", 'class A:\n    """Where it goes."""') == [], "the help of a command"
    sources = {"towline.x": '"""The map: `a`."""', "towline.x.a": "", "towline.x.b": ""}
    assert unmapped(sources) == ["towline.x.b"]
    assert long_functions("towline.x", "def f():\n" + "    pass\n" * 70) != []
    assert long_functions("towline.x", "def f():\n" + "    pass\n" * 69) == []


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("tests.broker.test_it", "from towline.broker.broker import Broker", True),
        ("tests.broker.test_it", "from towline import clock", True),
        ("tests.broker.test_it", "monkeypatch.setattr('towline.broker.broker.LIMIT', 1)", True),
        ("tests.broker.test_it", "import towline\nfrom towline.errors import Refused\nfrom towline import cli", False),
        ("tests.broker.test_it", "from tests.inside.broker import Broker", False),
        ("tests.unit.broker.test_it", "from towline.broker.broker import Broker", False),
    ],
)
def test_a_way_past_the_facade_is_found(name: str, source: str, found: bool) -> None:
    assert bool(past_the_facade({name: source}, ["towline.broker.broker", "towline.clock", "towline.cli"])) is found
