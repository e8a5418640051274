"""`python -m towline.demo`."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

import towline.demo
from towline.demo.consumer import consume
from towline.demo.scenes import SCENES
from towline.demo.story import Story

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ToldToStop(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _on_signal(number: int, frame: FrameType | None) -> None:
    # The first one ends the demo; those that follow must not keep it from tidying up.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise ToldToStop(number)


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["consume"]:
        consume(*arguments[1:])
        return 0
    if arguments:
        asked = arguments[0] in ("-h", "--help", "help")
        print(
            towline.demo.__doc__ if asked else f"error: the demo takes no arguments: {arguments[0]}",
            file=None if asked else sys.stderr,
        )
        return 0 if asked else 2
    try:
        for number in SIGNALS:
            signal.signal(number, _on_signal)
        return _play()
    except ToldToStop as told:
        return 128 + told.number
    except KeyboardInterrupt:
        return 130


def _play() -> int:
    from rich.console import Console

    # Who reads a pipe wants whole lines.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    with tempfile.TemporaryDirectory(prefix="towline-demo-", ignore_cleanup_errors=True) as folder:
        story = Story(console, Path(folder))
        try:
            for scene in SCENES:
                scene(story)
        finally:
            story.close()
    return 1 if story.faults else 0


if __name__ == "__main__":
    sys.exit(main())
