"""Rendering of a message: text, JSON, raw bytes or hexadecimal."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from towline.cli.output import stamp
from towline.log_lines import harmless

if TYPE_CHECKING:
    from towline.client.consume.message import Message

__all__ = ["MessageFormat", "facts", "preview", "renderer", "text_or_base64"]

MessageFormat = Literal["text", "json", "raw", "hex"]


def renderer(kind: MessageFormat) -> Callable[[Message], bytes]:
    match kind:
        case "json":
            return lambda message: msgspec.json.encode(facts(message)) + b"\n"
        case "raw":
            return lambda message: message.body
        case "hex":
            return lambda message: message.body.hex().encode() + b"\n"
        case "text" if sys.stdout.isatty():
            return lambda message: harmless(message.body.decode("utf-8", "backslashreplace"), "\n\t").encode() + b"\n"
        case "text":
            return lambda message: message.body + b"\n"


def facts(message: Message) -> dict[str, Any]:
    """All facts about a message. `encoding` is that of the body: utf-8 or base64."""
    body, encoding = text_or_base64(message.body)
    return {
        "id": message.id,
        "topic": message.topic,
        "lane": message.lane,
        "seq": message.seq,
        "attempt": message.attempt,
        "key": message.key,
        "headers": message.headers,
        "appended_at": stamp(message.appended_at_us),
        "produced_at": stamp(message.produced_at_us),
        "source": message.source,
        "token": message.token,
        "encoding": encoding,
        "body": body,
    }


def text_or_base64(body: bytes) -> tuple[str, str]:
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def preview(body: bytes, length: int = 40) -> str:
    """The beginning of a body, for a table."""
    text = harmless(body[: 4 * length].decode("utf-8", "backslashreplace"))
    return text[:length] + "…" if len(text) > length else text
