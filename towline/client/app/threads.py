"""Threads for handlers that block. One that is stuck cannot be killed: it is interrupted, and replaced by another."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from towline.client.consume.interruption import Interruption

__all__ = ["Interrupted", "Job", "Threads"]


class Interrupted(BaseException):
    """Raised inside a handler's thread that took too long (see `towline.client.consume.interruption`)."""


class Job:
    """One call of a handler. `done` is a future of the loop; its result is the handler's error, or None."""

    __slots__ = ("_threads", "argument", "done", "function")

    def __init__(self, threads: Threads, function: Callable[[Any], object], argument: Any) -> None:
        self._threads = threads
        self.function = function
        self.argument = argument
        self.done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def interrupt(self) -> None:
        self._threads.interrupt(self)


class Threads:
    """At most one thread for each job at a time, made when it is needed. The caller bounds the jobs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._interrupted: list[_Worker] = []
        self._unfinished = 0

    @property
    def stuck(self) -> int:
        """Threads that were interrupted and do not come back."""
        self._interrupted = [worker for worker in self._interrupted if worker.is_alive()]
        return len(self._interrupted)

    def submit(self, function: Callable[[Any], object], argument: Any) -> Job:
        job = Job(self, function, argument)
        self._unfinished += 1
        if len(self._workers) < self._unfinished:
            worker = _Worker(self._name, self._jobs, self._finish)
            self._workers.append(worker)
            worker.start()
        self._jobs.put(job)
        return job

    def interrupt(self, job: Job) -> None:
        """Nobody waits for this job any more. Its thread ends with it, whenever that is."""
        if job.done.done():
            return
        job.done.cancel()
        self._unfinished -= 1
        for worker in self._workers:
            if worker.interrupt(job):
                self._workers.remove(worker)
                self._interrupted.append(worker)
                return

    def close(self) -> None:
        for _ in self._workers:
            self._jobs.put(None)
        self._workers.clear()

    def _finish(self, job: Job, error: BaseException | None) -> None:
        """In the worker's thread."""
        try:
            self._loop.call_soon_threadsafe(self._finished, job, error)
        except RuntimeError:
            # The loop was closed: nobody waits for it.
            pass

    def _finished(self, job: Job, error: BaseException | None) -> None:
        if not job.done.done():
            self._unfinished -= 1
            job.done.set_result(error)


class _Worker(threading.Thread):
    def __init__(
        self, name: str, jobs: queue.SimpleQueue[Job | None], finish: Callable[[Job, BaseException | None], None]
    ) -> None:
        # A daemon: a stuck handler must not keep the process from ending.
        super().__init__(name=f"towline-{name}", daemon=True)
        self._jobs = jobs
        self._finish = finish
        self._guard = threading.Lock()
        self._job: Job | None = None
        self._interruption: Interruption | None = None
        self._interrupted = False

    def interrupt(self, job: Job) -> bool:
        with self._guard:
            if self._job is not job or self._interruption is None:
                return False
            self._interrupted = True
            self._interruption.start(time.monotonic())
            return True

    def run(self) -> None:
        while not self._interrupted and (job := self._jobs.get()) is not None:
            self._do(job)

    def _do(self, job: Job) -> None:
        error: BaseException | None = None
        interruption = Interruption(Interrupted, sys._getframe())
        with self._guard:
            if job.done.cancelled():
                return
            self._job, self._interruption = job, interruption
        try:
            try:
                job.function(job.argument)
            except BaseException as raised:
                error = raised
            interruption.end()
        except Interrupted:
            # It came when the handler was through already.
            interruption.end()
        with self._guard:
            self._job = self._interruption = None
        self._finish(job, error)
