"""Goal: each run of a task becomes one span of the right trace. Method: logs as the handlers write them, and a
collector that reads OTLP with OpenTelemetry's own messages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

import cystore
from cystore.celery.base import events
from cystore.celery.metrics.task_spans import RunSpan, RunSpans
from tests.celery.conftest import wait_until
from tests.structure.sources import ROOT
from tests.support.celery import work
from tests.support.celery.logs import event_message, runs, write
from tests.support.celery.web import TIMEOUT_S
from tools.processes import ends_with_us

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
FAILED = 2


class Collector:
    """Takes OTLP over HTTP; `refuses` answers are errors first."""

    def __init__(self, refuses: int = 0) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.spans, self.resources, self.refused = [], [], 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if collector.refused < refuses:
                    collector.refused += 1
                    self.send_response(400)
                else:
                    collector.took(ExportTraceServiceRequest.FromString(body))
                    self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/traces"
        self._thread = Thread(target=self.server.serve_forever)

    def took(self, request) -> None:
        for resource in request.resource_spans:
            self.resources.append({one.key: one.value.string_value for one in resource.resource.attributes})
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def taken(*messages) -> list[RunSpan]:
    """The runs in a log of these messages."""
    spans, found = RunSpans(), []
    for number, message in enumerate(messages):
        found += spans.take(_stored(message, number))
    return found


def _stored(message, number) -> events.Event:
    keys = list(message.keys)
    root = next(
        (key.removeprefix("root:") for key in keys if key.startswith("root:")), keys[0] if keys else None
    )
    return events.Event(
        keys[0] if keys else None, message.tags, message.properties.get("task"), root, None, 1_000 * (number + 1),
        number * 1000, message,
    )  # fmt: skip


def event(kind, task_id, root_id=None, **details):
    return event_message(kind, task_id, "app.a", root_id, **details)


def test_a_run_is_a_span_of_its_publishers_trace():
    (run,) = taken(
        event(events.SENT, "t", queue="q", traceparent=PARENT),
        event(events.STARTED, "t", worker="w@h", pid=7),
        event(events.SUCCEEDED, "t", worker="w@h", pid=7),
    )
    assert (run.trace_id, run.parent_span_id) == (int(TRACE, 16), int(SPAN, 16))
    assert (run.begin_ms, run.end_ms, run.state, run.name) == (2_000, 3_000, "SUCCEEDED", "run app.a")
    told = run.attributes
    assert (told["messaging.destination.name"], told["celery.worker"], told["celery.wait_s"]) == (
        "q",
        "w@h",
        1,
    )


@pytest.mark.parametrize(
    "given", ["", "x", PARENT.upper(), f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", 7, None]
)
def test_a_workflow_without_a_publishers_trace_is_one_trace(given):
    found = taken(
        event(events.SENT, "root", traceparent=given), event(events.STARTED, "root"),
        event(events.SENT, "child", "root", parent_id="root"), event(events.STARTED, "child", "root"),
        event(events.SUCCEEDED, "child", "root"), event(events.SUCCEEDED, "root"),
    )  # fmt: skip
    child, root = found
    assert (
        child.trace_id == root.trace_id and child.parent_span_id == root.span_id and root.parent_span_id == 0
    )
    assert 0 < root.trace_id < 1 << 128 and 0 < root.span_id < 1 << 64 and child.span_id != root.span_id


def test_a_child_is_in_the_trace_of_its_root():
    found = taken(
        event(events.SENT, "root", traceparent=PARENT), event(events.STARTED, "root"),
        event(events.SUCCEEDED, "root"), event(events.SENT, "child", "root", parent_id="root"),
        event(events.STARTED, "child", "root"), event(events.FAILED, "child", "root", exception="ValueError(1)"),
    )  # fmt: skip
    assert [run.trace_id for run in found] == [int(TRACE, 16)] * 2
    assert found[1].exception == "ValueError(1)"


def test_each_try_and_each_delivery_is_a_span():
    found = taken(
        event(events.STARTED, "t"), event(events.RETRIED, "t"),
        event(events.STARTED, "t", retries=1), event(events.CHILD_LOST, "t", retries=1, requeue=True),
        event(events.STARTED, "t", retries=1), event(events.SUCCEEDED, "t", retries=1),
        event(events.REVOKED, "never began"),
    )  # fmt: skip
    assert [run.state for run in found] == ["RETRIED", "CHILD_LOST", "SUCCEEDED"]
    assert [run.attributes["celery.retries"] for run in found] == [0, 1, 1]
    assert len({run.span_id for run in found}) == 3 and len({run.trace_id for run in found}) == 1


def exported(*words) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cystore", "spans", *map(str, words)]
    return subprocess.run(
        ends_with_us(command), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@pytest.fixture
def path(tmp_path) -> Iterator[object]:
    with cystore.open(tmp_path / "store") as store:
        write(store, runs(20))
        yield store.path


def test_the_collector_gets_every_run_once(path):
    """Although it refuses the first request."""
    with Collector(refuses=1) as collector:
        done = exported(path, "--otlp", collector.url, "--from-oldest", "--once", "--service", "shop")
        assert (done.returncode, done.stdout) == (0, "20 spans\n"), done.stderr
        assert collector.refused == 1 and "trying again" in done.stderr
    assert len({span.span_id for span in collector.spans}) == len(collector.spans) == 20
    assert collector.resources[0]["service.name"] == "shop" and collector.resources[0][
        "cystore.store"
    ] == str(path)
    failed = [span for span in collector.spans if span.status.code == FAILED]
    assert [span.status.message for span in failed] == ["ValueError(9)", "ValueError(19)"]
    (told,) = failed[0].events
    assert {one.key for one in told.attributes} == {
        "exception.type",
        "exception.message",
        "exception.stacktrace",
    }


def test_what_cannot_be_exported(path, tmp_path):
    for url in ("x", "ftp://a/b", "http://", "http://a:x/"):
        assert "is not the URL of a collector" in exported(path, "--otlp", url).stderr
    assert exported(tmp_path / "none", "--once").returncode == FAILED


def test_a_publishers_trace_is_kept(fresh_fleet):
    """Real: the header of a message that a worker runs."""
    fresh_fleet.start("--concurrency=1")
    result = fresh_fleet.task(work.add).apply_async((1, 2), headers={"traceparent": PARENT})
    assert result.get(timeout=120) == 3
    with Collector() as collector:
        wait_until(
            lambda: exported(
                fresh_fleet.store_path, "--otlp", collector.url, "--from-oldest", "--once"
            ).stdout.startswith("1 "),
            "the run is exported",
        )
    span = collector.spans[-1]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    assert (
        span.name == "run tests.support.celery.work.add"
        and span.end_time_unix_nano > span.start_time_unix_nano
    )


def test_a_batch_that_is_always_refused_does_not_stop_the_others(tmp_path, monkeypatch, caplog):
    from cystore.celery.metrics import span_export

    monkeypatch.setattr(span_export, "AGAIN_S", 0.0)
    monkeypatch.setattr(span_export, "TRIES_MOST", 3)
    with cystore.open(tmp_path / "s") as store, Collector(refuses=3) as collector:
        write(store, runs(2))
        export = span_export.SpanExport(store, collector.url, from_oldest=True)
        assert export.turn() == 0 and "left out 2 spans" in caplog.text
        write(store, runs(3, first=2))
        assert export.turn() == 3 and len(collector.spans) == 3
        export.close()


def test_what_a_collector_cannot_take_keeps_no_run_back(tmp_path, monkeypatch, caplog):
    """Seen: a batch with the name of a file that is no UTF-8 was sent for ten minutes, and then left out. A number of
    400 digits ended the export."""
    from cystore.celery.metrics import span_export

    monkeypatch.setattr(span_export, "TRIES_MOST", 1)
    with cystore.open(tmp_path / "s") as store, Collector() as collector:
        write(store, runs(2))
        odd = {"worker": "w\udc80@h", "queue": "q\ud800", "pid": 10**30, "retries": 10**400}
        text = "No such file: '/tmp/\udcff'"
        store.put_many([event_message(events.STARTED, "odd", "app.odd", **odd)])
        store.put_many(
            [event_message(events.FAILED, "odd", "app.odd", exception=text, traceback=text, **odd)]
        )
        export = span_export.SpanExport(store, collector.url, from_oldest=True)
        assert export.turn() == 3 and len(collector.spans) == 3
        export.close()
    assert collector.spans[-1].status.message == "No such file: '/tmp/?'"
