"""Workers that send."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import towline
from towline.load.foreman import Foreman
from towline.load.job import Tally, percentiles

__all__ = ["frames", "one_by_one", "paced", "through_producer"]

STAMP = 8
"""Bytes at the beginning of a paced body: when it was sent, on the steady clock."""


def frames(foreman: Foreman) -> Tally:
    """`send_many` from several threads on one connection, so that several calls are under way at a time."""
    job = foreman.job
    bodies = _bodies(job.size, job.batch)
    topics = cycle(job.topics)
    lock = threading.Lock()
    times_ns: list[int] = []
    done = asked = 0

    def work() -> None:
        nonlocal done, asked
        while True:
            with lock:
                if foreman.is_over(asked):
                    return
                batch = bodies[: job.count - asked] if job.count else bodies
                topic, due_ns = next(topics), foreman.begin_ns + int(asked / job.rate * 1e9) if job.rate else 0
                asked += len(batch)
            _sleep_until(due_ns)
            begin_ns = time.perf_counter_ns()
            client.send_many(topic, batch, durability=job.durability)
            with lock:
                times_ns.append(time.perf_counter_ns() - begin_ns)
                done += len(batch)
                foreman.came_to(done)

    with (
        towline.connect(job.url, token=job.token, secret=job.secret, ca_file=job.ca_file) as client,
        ThreadPoolExecutor(job.in_flight) as threads,
    ):
        foreman.ready()
        for thread in [threads.submit(work) for _ in range(job.in_flight)]:
            thread.result()
        return _tally(foreman, done, times_ns)


def _sleep_until(at_ns: int) -> None:
    left_s = (at_ns - time.perf_counter_ns()) / 1e9
    if left_s > 0:
        time.sleep(left_s)


def _bodies(size: int, count: int) -> list[bytes]:
    """Bodies that no disk, network or compressor can make small."""
    data = os.urandom(size * count)
    return [data[at * size : (at + 1) * size] for at in range(count)]


def through_producer(foreman: Foreman) -> Tally:
    """Single sends; the producer makes frames of them behind the scenes."""
    job = foreman.job
    bodies = cycle(_bodies(job.size, 1_000))
    topics = cycle(job.topics)
    done = 0
    with (
        towline.connect(job.url, token=job.token, secret=job.secret, ca_file=job.ca_file) as client,
        client.producer(durability=job.durability) as producer,
    ):
        send = producer.send
        foreman.ready()
        while not foreman.is_over(done):
            for _ in range(min(100, job.count - done) if job.count else 100):
                send(next(topics), next(bodies))
                done += 1
            foreman.came_to(done)
        producer.flush()
        return _tally(foreman, done, [])


def one_by_one(foreman: Foreman) -> Tally:
    """Each send is confirmed before the next."""
    job = foreman.job
    (body,) = _bodies(job.size, 1)
    topics = cycle(job.topics)
    times_ns: list[int] = []
    with towline.connect(job.url, token=job.token, secret=job.secret, ca_file=job.ca_file) as client:
        client.send(next(topics), body, durability=job.durability)
        foreman.ready()
        while not foreman.is_over(len(times_ns)):
            begin_ns = time.perf_counter_ns()
            client.send(next(topics), body, durability=job.durability)
            times_ns.append(time.perf_counter_ns() - begin_ns)
            foreman.came_to(len(times_ns))
        return _tally(foreman, len(times_ns), times_ns)


def paced(foreman: Foreman) -> Tally:
    """A steady pace. A late message is sent at once, so that a slow send does not slow down the pace."""
    job = foreman.job
    padding = bytes(max(0, job.size - STAMP))
    topics = cycle(job.topics)
    times_ns: list[int] = []
    with towline.connect(job.url, token=job.token, secret=job.secret, ca_file=job.ca_file) as client:
        foreman.ready()
        while not foreman.is_over(len(times_ns)):
            due_ns = foreman.begin_ns + int(len(times_ns) / job.rate * 1e9)
            _sleep_until(due_ns)
            begin_ns = time.perf_counter_ns()
            client.send(next(topics), begin_ns.to_bytes(STAMP, "little") + padding, durability=job.durability)
            times_ns.append(time.perf_counter_ns() - begin_ns)
            foreman.came_to(len(times_ns))
        return _tally(foreman, len(times_ns), times_ns)


def _tally(foreman: Foreman, done: int, times_ns: list[int]) -> Tally:
    return Tally(
        messages=done,
        bytes=done * foreman.job.size,
        begin_ns=foreman.begin_ns,
        end_ns=time.perf_counter_ns(),
        latency=percentiles(times_ns),
    )
