"""Envelopes: the encoding of requests and answers on the wire. Bytes in, envelopes out; nothing here moves a byte.

A client's first eight bytes are `PREFACE`. Then both sides send envelopes, little-endian:

    length      u32   of all that follows this field
    number      u32   chosen by the client for a request, repeated in its answer
    kind        u8    which request or answer, see `messages`
    (unused)    3 bytes of zero
    head length u32
    head        MessagePack
    attachments the rest

A length is checked against a limit before memory is reserved for it, and memory is reserved only as bytes come in, or
as came with the envelope before.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

import towline.protocol.access
import towline.protocol.backup
import towline.protocol.cluster
import towline.protocol.monitor
import towline.protocol.publications
import towline.protocol.scan
import towline.protocol.transactions  # noqa: F401 - it adds to the messages that there are
from towline.errors import ProtocolError, TooLarge, TowlineError
from towline.frame.spare import SPARE
from towline.protocol.base import LISTS_MAX_BYTES
from towline.protocol.messages import ANSWERS, REQUESTS, VERSION, Answer, Attach, Pull, Request, Settle
from towline.protocol.versions import in_words_of

__all__ = [
    "PREFACE",
    "PREFIX",
    "Decoder",
    "Envelope",
    "Scratch",
    "decode_answer",
    "decode_request",
    "encode_envelope",
    "split_attachments",
]

PREFACE = b"TOWLINE1"
PREFIX = struct.Struct("<IIB3xI")

_SCRATCH_BYTES = 256 << 10
_ADOPT_BYTES = 64 << 10
"""From this size on, an envelope stays in the scratch buffer and the scratch buffer is replaced: making a new one is
cheaper than a copy."""
_SMALL_BYTES = 4 << 10
_ACTS = "acts", "send several"
_WITH_LISTS = {Pull.kind: _ACTS, Settle.kind: _ACTS, Attach.kind: ("places", "name fewer")}
_HTTP = int.from_bytes(b"HTTP", "little")
"""The length that the first bytes of a web server would mean."""
_EARNED_BYTES = 1 << 20
"""A peer that has sent a whole envelope gets room for one as long, up to this, when the next has only begun."""

_ENCODE = msgspec.msgpack.Encoder().encode
_REQUESTS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(request) for kind, request in REQUESTS.items()
}
_ANSWERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(answer) for kind, answer in ANSWERS.items()
}


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """One request or answer as it came. (A struct is made faster than a named tuple.)"""

    number: int
    kind: int
    head: memoryview
    attachments: memoryview


def encode_envelope(
    number: int, message: Request | Answer, attachments_length: int = 0, version: int = VERSION
) -> bytes:
    """The bytes that go before the attachments, to a peer that speaks this version. Raises `Unsupported` for a request
    that it does not know."""
    head = _ENCODE(message if version == VERSION else in_words_of(version, message))
    return PREFIX.pack(12 + len(head) + attachments_length, number, message.kind, len(head)) + head


def decode_request(envelope: Envelope) -> Request:
    decoder = _REQUESTS.get(envelope.kind)
    if decoder is None:
        raise ProtocolError(f"unknown request kind {envelope.kind}: the client may be newer than this broker")
    if len(envelope.head) > LISTS_MAX_BYTES and envelope.kind in _WITH_LISTS:
        what, instead = _WITH_LISTS[envelope.kind]
        raise TooLarge(f"{what} of {len(envelope.head)} bytes in one request: {LISTS_MAX_BYTES} may be; {instead}")
    request: Request = _decode(decoder, envelope)
    return request


def decode_answer(envelope: Envelope) -> Answer:
    decoder = _ANSWERS.get(envelope.kind)
    if decoder is None:
        raise ProtocolError(f"unknown answer kind {envelope.kind}: the broker may be newer than this client")
    answer: Answer = _decode(decoder, envelope)
    return answer


def _decode(decoder: msgspec.msgpack.Decoder[Any], envelope: Envelope) -> Any:
    try:
        return decoder.decode(envelope.head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a message of kind {envelope.kind} does not decode: {error}") from None


class Scratch:
    """A buffer to receive into while nothing is half-received. Decoders that are used from one thread, and receive in
    one step without waiting (as an event loop does), may share one: then an idle connection holds no buffer."""

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = SPARE.view(_SCRATCH_BYTES)

    def give_away(self) -> memoryview:
        given, self.view = self.view, SPARE.view(_SCRATCH_BYTES)
        return given


class Decoder:
    """Collects bytes until an envelope is whole. `limit` bounds an envelope, and may be raised once a peer is trusted.

    There are two ways to give it bytes: `feed` them; or receive into `get_buffer` and call `received` with their
    number, which saves copying them. Envelopes are views of what was received, and stay valid for as long as they are
    kept.

    A peer that breaks the rules raises an exception; if sound envelopes came before the broken one, then these are
    given first, and the error is kept in `broken` and raised by the next call.
    """

    __slots__ = ("_at", "_earned", "_end", "_need", "_scratch", "_view", "broken", "completed", "limit")

    def __init__(self, limit: int, scratch: Scratch | None = None) -> None:
        self.limit = limit
        self.broken: TowlineError | None = None
        self.completed = 0
        """Envelopes received so far: it tells whether a half-sent one is still the same."""
        self._scratch = scratch
        self._view: memoryview | None = None  # holds a begun envelope from `_at` to `_end`; None if there is none
        self._at = 0
        self._end = 0
        self._earned = _SMALL_BYTES  # memory that may be reserved for an envelope of which little has come
        self._need = PREFIX.size  # the length of the begun envelope, as far as it is known

    @property
    def pending_bytes(self) -> int:
        return 0 if self._view is None else self._end - self._at

    def feed(self, data: bytes | memoryview) -> list[Envelope]:
        """Add bytes, and return the envelopes that they complete. Raises once the peer breaks the rules."""
        if self.broken is not None:
            raise self.broken
        if self._view is None:
            view = memoryview(data)
            envelopes, at = self._parse(view, 0, len(data))
            if at < len(data):
                self._keep(view[at:])
            return envelopes
        if self._end + len(data) > len(self._view):
            self._keep(self._view[self._at : self._end], len(data))
        self._view[self._end : self._end + len(data)] = data
        self._end += len(data)
        return self._advance()

    def get_buffer(self) -> memoryview:
        """A buffer to receive into; at least one byte long. `received` must follow before anything else is called."""
        if self._view is not None:
            return self._view[self._end :]
        if self._scratch is None:
            self._scratch = Scratch()
        return self._scratch.view

    def received(self, size: int) -> list[Envelope]:
        """The same as `feed` of the first `size` bytes of what `get_buffer` gave."""
        if self._view is None:
            assert self._scratch is not None, "received without get_buffer"
            if size < _ADOPT_BYTES:
                return self.feed(bytes(self._scratch.view[:size]))
            if self.broken is not None:
                raise self.broken
            self._view = self._scratch.give_away()
            self._at, self._end = 0, size
        else:
            self._end += size
        return self._advance()

    def _advance(self) -> list[Envelope]:
        """Parse the buffer, and make room for the rest of a begun envelope."""
        assert self._view is not None, "nothing is begun"
        envelopes: list[Envelope] = []
        if self._end - self._at >= self._need:
            envelopes, self._at = self._parse(self._view, self._at, self._end)
        if self._at == self._end:
            self._view = None
        elif self._end == len(self._view) or (envelopes and len(self._view) - self._at < self._need):
            self._keep(self._view[self._at : self._end])
        return envelopes

    def _keep(self, part: memoryview, more: int = 0) -> None:
        """Put a part of an envelope into a buffer of its own, with room for `more` bytes at least. It grows with what
        really came, not with what was announced."""
        have = len(part)
        size = max(min(max(self._need, _SCRATCH_BYTES), max(4 * have, self._earned)), have + more)
        self._view = SPARE.view(size) if size >= _SCRATCH_BYTES else memoryview(bytearray(size))
        self._view[:have] = part
        self._at, self._end = 0, have

    def _parse(self, view: memoryview, at: int, end: int) -> tuple[list[Envelope], int]:
        """The whole envelopes between `at` and `end`, and the end of the last."""
        envelopes: list[Envelope] = []
        self._need = PREFIX.size
        while end - at >= PREFIX.size:
            length, number, kind, head_length = PREFIX.unpack_from(view, at)
            if length > self.limit or length < 12 or head_length > length - 12:
                self._break(length)
                if not envelopes:
                    assert self.broken is not None, "just broken"
                    raise self.broken
                return envelopes, end
            after = at + 4 + length
            if after > end:
                self._need = 4 + length
                break
            head_at = at + PREFIX.size
            attached_at = head_at + head_length
            envelopes.append(Envelope(number, kind, view[head_at:attached_at], view[attached_at:after]))
            at = after
            self._earned = _SMALL_BYTES if length <= _SMALL_BYTES else min(length, _EARNED_BYTES)
        self.completed += len(envelopes)
        return envelopes, at

    def _break(self, length: int) -> None:
        self._view = None
        if length == _HTTP:
            self.broken = ProtocolError(
                "what listens there speaks HTTP: is it the port of the web console? A broker listens on port 7400, "
                "unless it was told otherwise"
            )
        elif length > self.limit:
            self.broken = TooLarge(f"a message of {length} bytes is over the limit of {self.limit}")
        else:
            self.broken = ProtocolError("a message states lengths that do not fit together")


def split_attachments(attachments: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """Cut the attachments into frames of the stated lengths; they must fit exactly."""
    if sum(lengths) != len(attachments):
        raise ProtocolError(f"frames of {sum(lengths)} bytes are announced, but {len(attachments)} bytes follow")
    if len(lengths) == 1:
        return [attachments]
    frames, at = [], 0
    for length in lengths:
        frames.append(attachments[at : at + length])
        at += length
    return frames
