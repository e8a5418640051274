"""Spans and trace context, in a process of its own: OpenTelemetry is on or off for a whole program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TRACED = """
import asyncio, threading
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import towline

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
app = towline.App("memory:traced")
seen = []

@app.on("orders", group="g")
def handle(message):
    seen.append((message.headers, trace.get_current_span().get_span_context().trace_id))
    if len(seen) == 4:
        app.stop()

async def by_aio():
    async with towline.aio.connect("memory:traced") as mq:
        await mq.send("orders", b"aio")

with towline.connect("memory:traced") as mq:
    with trace.get_tracer("test").start_as_current_span("root") as root:
        mq.send("orders", b"1", headers={"mine": "kept"})
        mq.send_many("orders", [b"2", b"3"])
    given = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    mq.send("orders", b"4", headers={"traceparent": given})
    thread = threading.Timer(30, app.stop)
    thread.daemon = True
    thread.start()
    app.run()
    asyncio.run(by_aio())

spans = exporter.get_finished_spans()
ours = root.get_span_context().trace_id
sends = [one for one in spans if one.name == "send orders"]
processes = [one for one in spans if one.name == "process orders"]
assert len(sends) == 4, [one.name for one in spans]
assert len(processes) == 4
assert [one.attributes.get("messaging.batch.message_count") for one in sends] == [None, 2, None, None]
assert all(one.kind is trace.SpanKind.PRODUCER for one in sends)
assert all(one.kind is trace.SpanKind.CONSUMER for one in processes)
assert [one.context.trace_id == ours for one in sends] == [True, True, False, False]
assert [trace_id == ours for _, trace_id in seen] == [True, True, True, False]
assert seen[3][1] == int("ab" * 16, 16) and seen[3][0]["traceparent"] == given
assert seen[0][0]["mine"] == "kept"
assert processes[0].parent.span_id == sends[0].context.span_id
assert processes[0].attributes["messaging.message.id"] == "orders/middle/0"
print("traced")
"""

UNTRACED = """
import sys
import towline
with towline.connect("memory:") as mq:
    mq.send("orders", b"1", headers={"traceparent": "00-x"})
    with mq.consumer("orders", group="g") as consumer:
        assert consumer.pull(1)[0].headers == {"traceparent": "00-x"}
    assert "send" not in vars(mq)
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
print("untraced")
"""


@pytest.mark.parametrize(("program", "said"), [(TRACED, "traced"), (UNTRACED, "untraced")])
def test_spans_are_made_where_opentelemetry_is_used_and_nowhere_else(program: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split()[-1:] == [said], done.stderr
