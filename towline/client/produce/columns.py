"""Many messages to be sent, as columns, and cut into frames that fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from towline.client.link.connection import Buffer
from towline.client.produce.encode import (
    FOREVER,
    FRAME_BYTES,
    FRAME_MESSAGES,
    Lives,
    Sender,
    as_dedup_id,
    as_headers,
    as_keys,
)
from towline.errors import BadRequest, TooLarge
from towline.frame.layout import unpacked_bytes

__all__ = ["Columns", "too_large"]


class Columns:
    """Many messages, cut into frames that fit."""

    def __init__(
        self,
        bodies: Sequence[bytes],
        keys: Any,
        headers: Any,
        dedup_ids: Any,
        times: Sequence[int] | None,
        *,
        max_frame_bytes: int,
        lives: Lives = FOREVER,
        valid_keys: bool = False,
    ) -> None:
        """`valid_keys`: the keys were checked before."""
        self.lives = lives
        for name, column in (("keys", keys), ("headers", headers), ("dedup_ids", dedup_ids)):
            if column is not None and not isinstance(column, Mapping) and len(column) != len(bodies):
                raise BadRequest(f"{len(column)} {name} for {len(bodies)} bodies")
        self.bodies = bodies
        self.sizes = list(map(len, bodies))
        self.times = times
        self.keys = keys if keys is None or valid_keys else as_keys(keys)
        self.dedup_ids = dedup_ids if dedup_ids is None else [as_dedup_id(one) for one in dedup_ids]
        if isinstance(headers, Mapping):
            self.headers = [as_headers(headers)] * len(bodies) if headers else None
        else:
            self.headers = headers if headers is None else [as_headers(value) for value in headers]
        self.limit = max_frame_bytes

    def frames(self, sender: Sender, compress: bool) -> Iterator[tuple[Buffer, int]]:
        for begin, end in self.cuts():
            yield from self._encoded(sender, compress, begin, end)

    def cuts(self, frames: int = 1) -> Iterator[tuple[int, int]]:
        """Where to cut, if what is between two cuts goes into so many frames."""
        sizes, limit, most = self.sizes, min(frames * FRAME_BYTES, self.limit), frames * FRAME_MESSAGES
        if len(sizes) <= most and sum(sizes) <= limit:
            if sizes:
                yield 0, len(sizes)
            return
        begin = total = 0
        for at, size in enumerate(sizes):
            if at > begin and (total + size > limit or at - begin >= most):
                yield begin, at
                begin, total = at, 0
            total += size
        yield begin, len(sizes)

    def _encoded(self, sender: Sender, compress: bool, begin: int, end: int) -> Iterator[tuple[Buffer, int]]:
        whole = begin == 0 and end == len(self.bodies)
        bodies, sizes = (self.bodies, self.sizes) if whole else (self.bodies[begin:end], self.sizes[begin:end])
        keys = self.keys if whole or self.keys is None else self.keys[begin:end]
        headers = self.headers if whole or self.headers is None else self.headers[begin:end]
        dedup_ids = self.dedup_ids if whole or self.dedup_ids is None else self.dedup_ids[begin:end]
        times = self.times if whole or self.times is None else self.times[begin:end]
        lives = self.lives.columns(end - begin)
        frame = sender.frame(bodies, keys, headers, compress, dedup_ids, times, sizes=sizes, **lives)
        if unpacked_bytes(frame) <= self.limit:
            yield frame, end - begin
            return
        # Keys and headers were not counted. Where they are large, halves will do.
        if end - begin == 1:
            raise too_large(len(bodies[0]), self.limit)
        middle = (begin + end) // 2
        yield from self._encoded(sender, compress, begin, middle)
        yield from self._encoded(sender, compress, middle, end)


def too_large(body_bytes: int, limit: int) -> TooLarge:
    return TooLarge(
        f"a message of {body_bytes} bytes is over the broker's limit of {limit} bytes a request (max_frame_bytes)"
    )
