"""Downloads: a body as it is, and dead letters as lines of JSON. The broker decides who gets them."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from towline.client._async.client import Client
from towline.client.consume.message import DeadLetter
from towline.console.dead_letters.pages import number_of
from towline.errors import BadRequest, NotFound, Refused, TowlineError
from towline.model import check_group, check_topic

__all__ = ["download_routes"]

PAGE: Final = 500


def download_routes() -> APIRouter:
    router = APIRouter(prefix="/download", include_in_schema=False)

    @router.get("/message")
    async def message(request: Request, id: str) -> Response:  # noqa: A002 - it is what it is
        try:
            found = await _client(request).message(id[:200])
        except TowlineError as error:
            return _sorry(error)
        return _file(found.body, f"{found.topic}-{found.lane}-{found.seq}.bin")

    @router.get("/letter")
    async def letter(request: Request, topic: str, group: str, number: str) -> Response:
        try:
            found = await _client(request).dead_letter(topic[:100], group[:100], number_of(number[:100]))
        except TowlineError as error:
            return _sorry(error)
        return _file(found.body, f"{check_topic(topic)}-dead-{int(found.number)}.bin")

    @router.get("/dead")
    async def dead(request: Request, topic: str, group: str, reason: str = "") -> Response:
        client = _client(request)
        try:
            check_topic(topic), check_group(group)
            await client.dead_letters(topic, group, max_messages=1, max_bytes=1)  # a begun stream cannot be refused
        except TowlineError as error:
            return _sorry(error)
        headers = _headers(f"{topic}-{group.lstrip('~')}-dead.jsonl")
        return StreamingResponse(_letters(client, topic, group, reason), 200, headers, "application/x-ndjson")

    return router


def _client(request: Request) -> Client:
    client: Client = request.scope["state"]["session"].client
    return client


def _sorry(error: TowlineError) -> Response:
    status = 403 if isinstance(error, Refused) else 404 if isinstance(error, NotFound | BadRequest) else 503
    return PlainTextResponse(f"{error}\n", status)


def _headers(name: str) -> dict[str, str]:
    """Never shown in the browser, whatever is in it."""
    return {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}


def _file(body: bytes, name: str) -> Response:
    return Response(body, 200, _headers(name), "application/octet-stream")


async def _letters(client: Client, topic: str, group: str, reason: str) -> AsyncIterator[bytes]:
    at = 0
    while True:
        page = await client.dead_letters(topic, group, first=at, max_messages=PAGE)
        yield b"".join(msgspec.json.encode(_line(one)) + b"\n" for one in page if reason in one.reason)
        if page.next <= at or page.next >= page.end:
            return
        at = page.next


def _line(one: DeadLetter) -> dict[str, Any]:
    try:
        body = {"body": one.body.decode("utf-8")}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(one.body).decode()}
    return {
        "number": int(one.number),
        **({"broker": one.broker} if one.broker else {}),
        "origin": one.origin,
        "key": one.key,
        "attempt": one.attempt,
        "reason": one.reason,
        "died_at_us": one.died_at_us,
        "resent": one.resent,
        "headers": {name: value for name, value in one.headers.items() if not name.startswith("towline-")},
        **body,
    }
