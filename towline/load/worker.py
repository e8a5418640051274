"""A worker process: reads its job from stdin, gets ready, waits for `go`, works, and reports on stdout."""

from __future__ import annotations

import signal
import sys

import msgspec

from towline.errors import TowlineError
from towline.load.foreman import Foreman, say
from towline.load.job import Job, Report

__all__ = ["main"]


def main() -> None:
    # Here and not above, so that the crew, which only needs the name of this module, does not load a client.
    from towline.load import consumers, producers

    roles = {
        "frames": producers.frames,
        "producer": producers.through_producer,
        "single": producers.one_by_one,
        "paced": producers.paced,
        "consume": consumers.batches,
        "handle": consumers.handle,
    }
    # Ctrl-C reaches all processes of a terminal; whoever started us decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    try:
        tally = roles[job.role](Foreman(job))
    except TowlineError as error:
        say(Report(error=str(error)))
        raise SystemExit(1) from None
    say(Report(done=tally.messages, tally=tally))


if __name__ == "__main__":
    main()
