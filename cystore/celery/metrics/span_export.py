"""Sends runs of tasks to a collector of OpenTelemetry, by OTLP over HTTP. Needs cystore[otel]."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SpanEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from cystore import MessageStore, __version__
from cystore.celery.metrics.event_reader import EventReader
from cystore.celery.metrics.task_spans import OK, RunSpan, RunSpans
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

BATCH = 512
LOOK_S = 2.0
AGAIN_S = 5.0  # between two tries to send what the collector did not take
TRIES_MOST = 120  # ten minutes: it may be away; or it refuses the batch for ever, and others wait behind it
SERVICE = "celery"  # OpenTelemetry's service.name


class SpanExport:
    """Follows one store, and sends each run that ended."""

    def __init__(
        self, store: MessageStore, url: str, *, service: str = SERVICE, from_oldest: bool = False
    ) -> None:
        self._store = store
        self._reader, self._runs = EventReader(from_oldest=from_oldest), RunSpans()
        self._resource = Resource.create({"service.name": service, "cystore.store": str(store.path)})
        self._scope = InstrumentationScope("cystore", __version__)
        self._exporter = OTLPSpanExporter(endpoint=url)

    def turn(self) -> int:
        """Reads on, and sends what ended; waits while the collector takes nothing, up to TRIES_MOST tries a batch.
        Returns the number of spans that it took. Raises StoreError."""
        end, sent = self._store.wrote_position, 0
        if self._reader.begin(self._store, end):
            self._runs = RunSpans()
        batch: list[RunSpan] = []
        for run in self._ended(end):
            batch.append(run)
            if len(batch) == BATCH:
                sent += self._send(batch)
                batch = []
        return sent + self._send(batch)

    def wait(self, timeout_s: float) -> None:
        """Sleeps until something is appended."""
        self._store.wait_log(self._reader.at, timeout_s)

    @property
    def caught_up(self) -> bool:
        """Whether it has read the log to its end."""
        return self._reader.caught_up and self._reader.at >= self._store.wrote_position

    def close(self) -> None:
        """Ends the connection."""
        self._exporter.shutdown()

    def _ended(self, end: int) -> Iterator[RunSpan]:
        for event in self._reader.read(self._store, end, LOOK_S):
            for run in self._runs.take(event):
                if event.physical_offset >= self._reader.begins_at:
                    yield run

    def _send(self, runs: Sequence[RunSpan]) -> int:
        """Sends a batch; returns the number of spans that the collector took."""
        spans = [self._span(run) for run in runs]
        if not spans:
            return 0
        for _ in range(TRIES_MOST):
            if self._exporter.export(spans) is SpanExportResult.SUCCESS:
                return len(spans)
            log.warning("%s: the collector did not take %d spans: trying again", self._store.path, len(spans))
            os_threads.pause(AGAIN_S)
        log.error(
            "%s: left out %d spans, which the collector refused %d times: `cystore spans --from-oldest` sends them "
            "again", self._store.path, len(spans), TRIES_MOST,
        )  # fmt: skip
        return 0

    def _span(self, run: RunSpan) -> ReadableSpan:
        def context(span_id: int, *, is_remote: bool) -> SpanContext:
            return SpanContext(
                run.trace_id, span_id, is_remote=is_remote, trace_flags=TraceFlags(TraceFlags.SAMPLED)
            )

        status = (
            Status(StatusCode.OK) if run.state in OK else Status(StatusCode.ERROR, run.exception or run.state)
        )
        return ReadableSpan(
            name=run.name,
            context=context(run.span_id, is_remote=False),
            parent=context(run.parent_span_id, is_remote=True) if run.parent_span_id else None,
            resource=self._resource,
            attributes=run.attributes,
            events=list(_events(run)),
            kind=SpanKind.CONSUMER,
            status=status,
            start_time=run.begin_ms * 1_000_000,
            end_time=run.end_ms * 1_000_000,
            instrumentation_scope=self._scope,
        )


def _events(run: RunSpan) -> Iterable[SpanEvent]:
    if run.exception is not None:
        told = {"exception.message": run.exception, "exception.type": run.exception.partition("(")[0]}
        if run.traceback is not None:
            told["exception.stacktrace"] = run.traceback
        yield SpanEvent("exception", told, run.end_ms * 1_000_000)
