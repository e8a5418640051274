"""Workers that consume."""

from __future__ import annotations

import time

import towline
from towline.load.foreman import Foreman
from towline.load.job import Tally, percentiles
from towline.load.producers import STAMP

__all__ = ["batches", "handle"]


def batches(foreman: Foreman) -> Tally:
    """Batch by batch: go through the messages one by one, and acknowledge them together."""
    job = foreman.job
    done = size = 0
    times_ns: list[int] = []
    with (
        towline.connect(job.url, token=job.token, secret=job.secret, ca_file=job.ca_file) as client,
        client.consumer(job.topics[0], group=job.group, max_messages=job.batch, idle_timeout=job.idle_s) as consumer,
    ):
        foreman.ready()
        last_ns = foreman.begin_ns
        for batch in consumer.batches():
            if job.count and len(batch) > job.count - done:
                # More than was asked for: the rest goes back.
                for message in batch[: job.count - done]:
                    size += len(message.body)
                    message.ack()
                done = job.count
            else:
                with batch:
                    for message in batch:
                        size += len(message.body)
                done += len(batch)
            now_ns = time.perf_counter_ns()
            times_ns.append(now_ns - last_ns)
            last_ns = now_ns
            foreman.came_to(done)
            if foreman.is_over(done):
                break
        consumer.flush()
        return Tally(
            messages=done,
            bytes=size,
            begin_ns=foreman.begin_ns,
            end_ns=time.perf_counter_ns() if foreman.is_over(done) else last_ns,
            latency=percentiles(times_ns),
        )


def handle(foreman: Foreman) -> Tally:
    """One message at a time, as a handler sees them; notes how long each was on its way."""
    job = foreman.job
    times_ns: list[int] = []
    size = 0
    with (
        towline.connect(job.url, token=job.token, secret=job.secret, ca_file=job.ca_file) as client,
        client.consumer(job.topics[0], group=job.group, idle_timeout=job.idle_s) as consumer,
    ):
        foreman.ready()
        for message in consumer:
            with message:
                times_ns.append(time.perf_counter_ns() - int.from_bytes(message.body[:STAMP], "little"))
                size += len(message.body)
            foreman.came_to(len(times_ns))
            if foreman.is_over(len(times_ns)):
                break
        return Tally(
            messages=len(times_ns),
            bytes=size,
            begin_ns=foreman.begin_ns,
            end_ns=time.perf_counter_ns(),
            latency=percentiles(times_ns),
        )
