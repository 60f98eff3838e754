"""Tracing: what OpenTelemetry and Sentry put into the headers of a task arrives with it."""

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.daemon import ROOT, Daemon
from tests.support.process import environment

# An app, and a worker in a thread, which shares no context with the main thread.
APP = """
import json, queue, sys
from celery import Celery
app = Celery(broker=sys.argv[1])
app.conf.task_default_queue = sys.argv[2]
app.conf.task_acks_late = True
seen = queue.Queue()
"""
OPENTELEMETRY = (
    APP
    + """
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
CeleryInstrumentor().instrument()

@app.task(name="traced")
def traced():
    seen.put(trace.get_current_span().get_span_context())

from celery.contrib.testing.worker import start_worker  # as in a worker, which loads its app first
with start_worker(app, perform_ping_check=False):
    with trace.get_tracer("shop").start_as_current_span("request") as request:
        traced.delay()
    context = seen.get(timeout=30)
spans = {span.name: span for span in exporter.get_finished_spans()}
publish, run = spans["apply_async/traced"], spans["run/traced"]
print(json.dumps({
    "request": request.get_span_context().trace_id, "task": context.trace_id,
    "published": [publish.context.span_id], "parent": run.parent.span_id,
}))
"""
)
SENTRY = (
    APP
    + """
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport
transactions = []

class Kept(Transport):
    def capture_envelope(self, envelope):
        transactions.append(envelope.get_transaction_event())

sentry_sdk.init("http://key@localhost/1", transport=Kept, traces_sample_rate=1.0, integrations=[CeleryIntegration()],
    default_integrations=False)

@app.task(name="traced")
def traced():
    seen.put(sentry_sdk.get_current_span())

from celery.contrib.testing.worker import start_worker  # as in a worker, which loads its app first
with start_worker(app, perform_ping_check=False):
    with sentry_sdk.start_transaction(name="request") as request:
        traced.delay()
    span = seen.get(timeout=30)
sentry_sdk.flush()
sent = next(sent for sent in transactions if sent and sent["transaction"] == "request")
published = [span["span_id"] for span in sent["spans"] if span["op"] == "queue.submit.celery"]
run = next(sent for sent in transactions if sent and sent["transaction"] == "traced")["contexts"]["trace"]
print(json.dumps({
    "request": request.trace_id, "task": span.trace_id, "published": published,
    "parent": run["parent_span_id"],
}))
"""
)


def traced(server: Daemon, program: str, queue: str) -> dict[str, Any]:
    command = [sys.executable, "-c", program, f"kestrel://{server.address}", queue]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=100)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry") is None
    or importlib.util.find_spec("opentelemetry.sdk") is None
    or importlib.util.find_spec("opentelemetry.instrumentation") is None
    or importlib.util.find_spec("opentelemetry.instrumentation.celery") is None,
    reason="needs OpenTelemetry: pip install opentelemetry-sdk opentelemetry-instrumentation-celery",
)
def test_a_task_is_in_the_opentelemetry_trace_of_its_delay(server: Daemon) -> None:
    found = traced(server, OPENTELEMETRY, "opentelemetry")
    assert found["task"] == found["request"]
    assert found["parent"] in found["published"]


@pytest.mark.skipif(importlib.util.find_spec("sentry_sdk") is None, reason="needs Sentry: pip install sentry-sdk")
def test_a_task_is_in_the_sentry_trace_of_its_delay(server: Daemon) -> None:
    found = traced(server, SENTRY, "sentry")
    assert found["task"] == found["request"]
    assert found["parent"] in found["published"]
