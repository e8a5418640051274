"""The command line, `towline`. Each command or group of commands has a file here; `main` is the script's entry point.

Data goes to stdout, everything else to stderr. Exit codes: 0 it worked, 1 it failed, 2 it was called wrongly, 130 it
was interrupted. Heavy imports are inside the commands, so that `towline --help` answers at once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group

from towline.cli.alarm import alarm
from towline.cli.audit import audit
from towline.cli.backup import backup, restore
from towline.cli.bench import bench
from towline.cli.check import check
from towline.cli.cluster import clients, cluster
from towline.cli.console import console
from towline.cli.consume import consume
from towline.cli.dead import dead
from towline.cli.delay import delay
from towline.cli.find import find
from towline.cli.groups import group
from towline.cli.log import log
from towline.cli.options import Usage
from towline.cli.output import OutputFailed, fail, guarded
from towline.cli.rest import rest
from towline.cli.rules import acl
from towline.cli.run import run as run_app
from towline.cli.send import send
from towline.cli.serve import serve
from towline.cli.spark import spark
from towline.cli.tokens import token
from towline.cli.top import top
from towline.cli.topics import topic
from towline.cli.trace import trace
from towline.cli.transactions import tx
from towline.cli.users import user
from towline.cli.version import version, version_text
from towline.errors import BadName, TowlineError
from towline.log_lines import LineFormatter

__all__ = ["main", "run"]

_MESSAGES = Group("Messages", sort_key=1)
_ADMIN = Group("Administration", sort_key=2)
_ACCESS = Group("Access", sort_key=3)
_BROKER = Group("Broker", sort_key=4)
_JOBS = Group("Many messages", sort_key=5)

app = App(
    name="towline",
    help="Towline, a pull-based message queue: send and consume messages, run a broker, and look after both.\n\n"
    "Each command explains itself: `towline COMMAND --help`.",
    version=version_text,
    version_flags=["--version"],
    result_action="return_int_as_exit_code_else_zero",
    suppress_keyboard_interrupt=False,
)
app.command(send, group=_MESSAGES, sort_key=1)
app.command(consume, group=_MESSAGES, sort_key=2)
app.command(run_app, name="run", group=_MESSAGES, sort_key=3)
app.command(find, group=_MESSAGES, sort_key=4)
app.command(trace, group=_MESSAGES, sort_key=5)
for place, commands in enumerate((topic, group, dead, delay, tx, alarm)):
    commands.group, commands.sort_key = (_ADMIN,), place
    app.command(commands)
for place, commands in enumerate((user, token, acl, audit)):
    commands.group, commands.sort_key = (_ACCESS,), place
    app.command(commands)
app.command(clients, group=_ADMIN, sort_key=90)
cluster.group, cluster.sort_key = (_ADMIN,), 91
app.command(cluster)
app.command(serve, group=_BROKER, sort_key=1)
app.command(console, group=_BROKER, sort_key=1)
app.command(rest, group=_BROKER, sort_key=1)
app.command(backup, group=_BROKER, sort_key=1)
app.command(restore, group=_BROKER, sort_key=1)
app.command(top, group=_BROKER, sort_key=2)
app.command(check, group=_BROKER, sort_key=2)
for place, commands in enumerate((log, bench), start=2):
    commands.group, commands.sort_key = (_BROKER,), place
    app.command(commands)
spark.group = (_JOBS,)
app.command(spark)
app.command(version, group=_BROKER, sort_key=4)


def main() -> None:
    if sys.stdout is None:
        fail("cannot write the output: stdout is closed")
        sys.exit(1)
    sys.stdout = guarded(sys.stdout)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LineFormatter())
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    try:
        code = app(_lone_hyphen_last(arguments), exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        fail(str(error))
        return 2
    except (Usage, BadName) as error:
        fail(str(error))
        return 2
    except TowlineError as error:
        fail(str(error))
        return 1
    except BrokenPipeError:
        _drop_output()  # Whoever read it has seen enough.
        return 0
    except OutputFailed as error:
        _drop_output()
        fail(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return int(code)


def _drop_output() -> None:
    """Drop output that could not be written: Python would complain when it flushes stdout at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _lone_hyphen_last(arguments: Sequence[str]) -> list[str]:
    """`send TOPIC -` means stdin, but the parser takes a hyphen for an option unless it stands behind `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [argument for argument in arguments[:end] if argument != "-"]
    if len(options) == end:
        return list(arguments)
    return [*options, "--", *["-"] * (end - len(options)), *arguments[end + 1 :]]
