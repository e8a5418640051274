"""A tiny client that speaks the wire protocol and nothing more, so that tests can also speak it wrongly."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

from tests.inside.frame import Frame, encode
from tests.inside.protocol import (
    PREFACE,
    VERSION,
    Answer,
    Attach,
    Attached,
    Beat,
    Decoder,
    Done,
    Envelope,
    Failed,
    FrameHead,
    Hello,
    Pull,
    Pulled,
    Request,
    Send,
    Sent,
    Welcome,
    decode_answer,
    encode_envelope,
)

TIMEOUT_S = 60.0
A = TypeVar("A", bound=Answer)


class RawClient:
    def __init__(self, port: int | socket.socket, *, context: ssl.SSLContext | None = None) -> None:
        """Connect to a port, or take a socket that is connected already."""
        self.socket: socket.socket = (
            port if isinstance(port, socket.socket) else socket.create_connection(("127.0.0.1", port))
        )
        self.socket.settimeout(TIMEOUT_S)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self.decoder = Decoder(256 << 20)
        self.envelopes: list[Envelope] = []
        self.number = 0

    @classmethod
    def hello(cls, port: int | socket.socket, token: str = "", secret: str = "", **options: Any) -> RawClient:
        client = cls(port, **options)
        client.write(PREFACE)
        client.call(Hello(VERSION, VERSION, token, secret), Welcome)
        return client

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, request: Request, attachments: bytes = b"") -> int:
        """Send a request without waiting for the answer."""
        self.number += 1
        self.write(encode_envelope(self.number, request, len(attachments)) + attachments)
        return self.number

    def read_envelope(self) -> Envelope | None:
        """The next answer as it came, or None when the broker has closed the connection."""
        while not self.envelopes:
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self.envelopes += self.decoder.feed(data)
        return self.envelopes.pop(0)

    def read(self) -> tuple[int, Answer] | None:
        envelope = self.read_envelope()
        return None if envelope is None else (envelope.number, decode_answer(envelope))

    def call(self, request: Request, expected: type[A], attachments: bytes = b"") -> A:
        """The answer to a request; raises what the broker said went wrong."""
        number = self.post(request, attachments)
        got = self.read()
        assert got is not None, "the broker closed the connection"
        assert got[0] == number
        if isinstance(got[1], Failed) and expected is not Failed:
            raise got[1].error
        assert isinstance(got[1], expected), got
        return got[1]

    def knock(self) -> None:
        """Return when the broker has taken everything sent so far; other requests may be waiting for their answer."""
        number = self.post(Beat())
        got = self.read()
        assert got == (number, Done()), got

    def send(self, topic: str, bodies: Sequence[bytes], *, token: bytes = b"", durability: int = -1) -> Sent:
        frame = encode(bodies, token=token)
        return self.call(Send([FrameHead(topic, 1, len(frame))], durability), Sent, frame)

    def attach(self, topic: str, group: str = "g", consumer: str = "c") -> int:
        return self.call(Attach(topic, group, consumer), Attached).subscription

    def pull(self, subscription: int, max_messages: int = 1000, wait_ms: int = 20_000) -> list[bytes]:
        return self.pull_with_id(subscription, max_messages, wait_ms)[1]

    def pull_with_id(
        self, subscription: int, max_messages: int = 1000, wait_ms: int = 20_000
    ) -> tuple[int, list[bytes]]:
        self.post(Pull(subscription, max_messages, 8 << 20, wait_ms))
        envelope = self.read_envelope()
        assert envelope is not None, "the broker closed the connection"
        return open_pulled(envelope)

    def last_words(self) -> list[Answer]:
        """All that the broker still says until it closes the connection."""
        words = []
        while (got := self.read()) is not None:
            words.append(got[1])
        return words


def open_pulled(envelope: Envelope) -> tuple[int, list[bytes]]:
    """The id and the bodies of a pull, every frame of it verified."""
    answer = decode_answer(envelope)
    assert isinstance(answer, Pulled), answer
    bodies: list[bytes] = []
    at = 0
    for part in answer.parts:
        frame = Frame(envelope.attachments[at : at + part.length]).verify()
        bodies += frame.bodies(part.start, part.start + part.count)
        at += part.length
    assert at == len(envelope.attachments)
    return answer.pull, bodies
