"""The connection of one broker to another: the protocol's client side, as far as brokers need it."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, NamedTuple, TypeVar

from towline.errors import ProtocolError, TowlineError, Unavailable
from towline.protocol import PREFACE, Decoder, decode_answer, encode_envelope
from towline.protocol.messages import VERSION, VERSION_MIN, Answer, Failed, Hello, Request, Welcome

__all__ = ["Credentials", "Peer"]

A = TypeVar("A", bound=Answer)

_READ_BYTES: Final = 64 << 10
_ANSWER_BYTES: Final = 8 << 20


class Credentials(NamedTuple):
    """The credentials of a broker in its cluster."""

    token: str = ""
    secret: str = ""
    context: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Credentials of {self.token!r}>"


class Peer:
    """One connection, with one request at a time; any failure is an `Unavailable`, and the connection of no more
    use."""

    def __init__(
        self, host: str, port: int, credentials: Credentials, timeout_s: float, *, login_s: float = 0.0
    ) -> None:
        """A login may take `login_s`, if that is longer: one that is refused takes its time."""
        self._host = host
        self._port = port
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._login_s = max(timeout_s, login_s)
        self._decoder = Decoder(_ANSWER_BYTES)
        self._number = 0
        self._version = VERSION
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        context = self._credentials.context
        name = self._host if context is not None else None
        try:
            async with asyncio.timeout(self._timeout_s):
                self._reader, self._writer = await asyncio.open_connection(
                    self._host, self._port, ssl=context, server_hostname=name
                )
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"{self._host}:{self._port} cannot be reached: {str(error) or 'no answer'}") from None
        self._writer.write(PREFACE)
        hello = Hello(VERSION_MIN, VERSION, self._credentials.token, self._credentials.secret, "broker")
        self._version = (await self.ask(hello, Welcome, self._login_s)).version

    async def ask(self, request: Request, expected: type[A], timeout_s: float = 0.0) -> A:
        assert self._writer is not None, "a neighbour is asked once it is connected"
        self._number += 1
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s):
                self._writer.write(encode_envelope(self._number, request, 0, self._version))
                await self._writer.drain()
                answer = await self._answer(self._number)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise Unavailable(f"{self._host}:{self._port} does not answer: {str(error) or 'too late'}") from None
        if isinstance(answer, Failed):
            raise answer.error
        if not isinstance(answer, expected):
            raise ProtocolError(f"{type(request).__name__} was answered by {type(answer).__name__}")
        return answer

    async def _answer(self, number: int) -> Answer:
        while True:
            data = await self._reader.read(_READ_BYTES)
            if not data:
                raise Unavailable(f"{self._host}:{self._port} closed the connection")
            for envelope in self._decoder.feed(data):
                if envelope.number == number:
                    return decode_answer(envelope)
                if envelope.number == 0:
                    last_word = decode_answer(envelope)
                    raise (
                        last_word.error
                        if isinstance(last_word, Failed)
                        else TowlineError("an answer to nothing that was asked")
                    )

    async def rest(self, seconds: float) -> None:
        """Send nothing for a while; raises when the connection breaks meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                data = await self._reader.read(_READ_BYTES)
        except TimeoutError:
            return
        except OSError as error:
            raise Unavailable(f"{self._host}:{self._port}: the connection broke: {error}") from None
        if not data:
            raise Unavailable(f"{self._host}:{self._port} closed the connection")
        self._decoder.feed(data)

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            try:
                async with asyncio.timeout(1.0):
                    await self._writer.wait_closed()
            except (OSError, TimeoutError):
                pass
