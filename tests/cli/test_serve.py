"""`towline serve`: one line when ready, settings from everywhere, an orderly end."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, stop
from tests.inside.ground import load_settings, misspelt_variables
from towline.errors import BadRequest


def ready(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_when_told_to(cli: Cli, number: signal.Signals) -> None:
    with cli.start("serve", "--store", "memory:", "--listen", "127.0.0.1:0") as process:
        line = ready(process)
        result = stop(process, number)
    assert line.startswith("listening on 127.0.0.1:")
    assert int(line.rpartition(":")[2]) > 0
    assert result.out == b""
    assert result.code == 0


def test_flags_win_over_the_environment_and_that_over_the_file(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('store = "file:from-file"\nlisten = "127.0.0.1:0"\n')
    given: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "from-file": ((), {}),
        "from-environment": ((), {"TOWLINE_STORE": "file:from-environment"}),
        "from-flag": (("--store", "file:from-flag"), {"TOWLINE_STORE": "file:unused"}),
    }
    for folder, (flags, environment) in given.items():
        with cli.start("serve", "--config", config, *flags, env=environment) as process:
            assert ready(process).startswith("listening on")
            assert stop(process, signal.SIGTERM).code == 0
        assert (tmp_path / folder).is_dir()
    assert not (tmp_path / "unused").exists()


def test_a_misspelt_setting_in_the_file_is_found(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("max_conections = 5\n")
    assert cli("serve", "--config", config, code=2).err == (
        f"error: unknown setting 'max_conections' (file {config}): did you mean max_connections?\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-connections = 5", "unknown setting 'max-connections' (file {}): write it with underscores"),
        ("[broker]\nlisten = 'x'", "unknown setting 'broker' (file {}): settings stand at the top of the file"),
        ("heartbeat_s = 0", "setting heartbeat_s (file {}) cannot be 0: give a number of at least 0.05 and at most"),
        ("durability = 'disk'", "setting durability (file {}) cannot be 'disk': give one of fsync, os, received"),
        ("listen = 7400", "setting listen (file {}) cannot be 7400: give a text"),
    ],
)
def test_a_wrong_setting_says_where_it_stands_and_what_may_be(tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(text)
    with pytest.raises(BadRequest) as caught:
        load_settings(file=config, environment={})
    assert str(caught.value).startswith(said.format(config))


def test_flags_and_variables_are_named() -> None:
    with pytest.raises(BadRequest, match=r"setting max_connections \(flag --max-connections\) cannot be 0"):
        load_settings({"max_connections": 0}, environment={})
    with pytest.raises(BadRequest, match=r"setting idle_s \(variable TOWLINE_IDLE_S\) cannot be 'x': give a number"):
        load_settings(environment={"TOWLINE_IDLE_S": "x"})
    assert misspelt_variables({"TOWLINE_MAX_CONECTIONS": "1", "TOWLINE_TOKEN": "x", "TOWLINE_HOME": "x"}) == [
        "variable TOWLINE_MAX_CONECTIONS has no effect: did you mean TOWLINE_MAX_CONNECTIONS?"
    ]


def test_a_folder_has_one_broker_at_a_time(cli: Cli, tmp_path: Path) -> None:
    store = ("--store", f"file:{tmp_path / 'data'}", "--listen", "127.0.0.1:0")
    with cli.start("serve", *store) as process:
        ready(process)
        second = cli("serve", *store, code=1)
        stop(process, signal.SIGTERM)
    assert second.out == b""
    assert second.err


def test_an_address_in_use_is_said_and_not_a_traceback(cli: Cli, tmp_path: Path) -> None:
    address = cli.url.removeprefix("towline://")
    result = cli("serve", "--store", "memory:", "--listen", address, code=1)
    assert "Traceback" not in result.err
    assert result.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--store", "memory:", "--listen", "nonsense"), "error: listen 'nonsense': write HOST:PORT"),
        (("--store", "./data2"), "error: store './data2': write memory:, file:DIR or mysql://"),
        (("--store", "mysql://u:secret@h/db"), "error: store 'mysql://u:…@h/db': the password does not belong here"),
        (("--store", "memory:", "--tls-cert", "x.pem"), "error: TLS takes both"),
    ],
)
def test_being_called_wrongly_is_code_2(cli: Cli, flags: tuple[str, ...], said: str) -> None:
    assert cli("serve", *flags, code=2).err.startswith(said)


@pytest.mark.parametrize("arguments", [("-u", "http://x"), ("-u", "towline://x:y"), ("--ca-file", "x.pem")])
def test_a_url_that_cannot_be_is_code_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("topic", "ls", *arguments, code=2).err.startswith("error: ")


def test_a_folder_that_cannot_be_opened_is_named_with_advice(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("in the way")
    said = f"error: the folder {tmp_path}/plain cannot be opened: Not a directory; "
    said += "a file is in the way: choose another folder\n"
    assert cli("serve", "--store", "file:plain", "--listen", "127.0.0.1:0", code=1).err == said
    assert cli("topic", "ls", "-u", "file:plain", code=1).err == said


def test_a_tilde_is_the_home_folder_and_data_is_private(cli: Cli, tmp_path: Path) -> None:
    assert cli("send", "t", "x", "-u", "file:~/data", env={"HOME": str(tmp_path)}).out == b"t/middle/0\n"
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
