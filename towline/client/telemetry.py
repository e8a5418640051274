"""Spans of OpenTelemetry for those who use it: a program that has imported `opentelemetry.trace` before it connects.

Nothing is imported here, and clients of other programs are left as they are, so that they pay nothing. The context
travels in the headers of a message, as W3C's `traceparent` and `tracestate`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final

__all__ = ["instrument", "processing"]

MODULE: Final = "opentelemetry.trace"
HEADER: Final = "traceparent"
LINKS_MAX: Final = 100


def instrument(client: Any) -> None:
    """Let `send` and `send_many` of a client or producer make spans, and pass their context on to consumers."""
    if MODULE not in sys.modules:
        return
    for name in ("send", "send_many"):
        method = getattr(client, name, None)
        if method is not None:
            setattr(client, name, _sending(method))


def _sending(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def send(topic: str, *given: Any, **options: Any) -> Any:
            with _send_span(topic, given):
                options["headers"] = _with_context(options.get("headers"))
                return await method(topic, *given, **options)

        return send

    @wraps(method)
    def send_now(topic: str, *given: Any, **options: Any) -> Any:
        with _send_span(topic, given):
            options["headers"] = _with_context(options.get("headers"))
            return method(topic, *given, **options)

    return send_now


def _send_span(topic: str, given: Sequence[Any]) -> Any:
    from opentelemetry import trace

    attributes: dict[str, Any] = _attributes(topic, "send")
    if given and isinstance(given[0], list | tuple):
        attributes["messaging.batch.message_count"] = len(given[0])
    tracer = trace.get_tracer("towline")
    return tracer.start_as_current_span(f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=attributes)


def _with_context(headers: Any) -> Any:
    """The headers with the current context, unless they have one."""
    from opentelemetry.propagate import inject

    context: dict[str, str] = {}
    inject(context)
    if headers is None:
        return context or None
    if isinstance(headers, Mapping):
        return headers if HEADER in headers else {**headers, **context}
    return [one if one and HEADER in one else {**(one or {}), **context} for one in headers]


def processing(function: Callable[[Any], Any], topic: str, group: str | None) -> Callable[[Any], Any]:
    """The handler, called within a span that continues the sender's."""
    if MODULE not in sys.modules:
        return function
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def process(argument: Any) -> Any:
            with _process_span(argument, topic, group):
                return await function(argument)

        return process

    @wraps(function)
    def process_now(argument: Any) -> Any:
        with _process_span(argument, topic, group):
            return function(argument)

    return process_now


def _process_span(argument: Any, topic: str, group: str | None) -> Any:
    from opentelemetry import trace
    from opentelemetry.propagate import extract

    messages = argument if isinstance(argument, list) else [argument]
    first = messages[0]
    attributes = _attributes(first.topic, "process") | {
        "messaging.message.id": first.id,
        "messaging.consumer.group.name": group or "",
        "messaging.towline.attempt": first.attempt,
    }
    links = []
    if len(messages) > 1:
        attributes["messaging.batch.message_count"] = len(messages)
        contexts = [trace.get_current_span(extract(one.headers)).get_span_context() for one in messages[1:LINKS_MAX]]
        links = [trace.Link(context) for context in contexts if context.is_valid]
    return trace.get_tracer("towline").start_as_current_span(
        f"process {first.topic}",
        context=extract(first.headers),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=links,
    )


def _attributes(topic: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": "towline",
        "messaging.destination.name": topic,
        "messaging.operation.type": operation,
    }
