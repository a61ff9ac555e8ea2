"""OpenTelemetry: the newest numbers and the findings as gauges, sent to a collector by OTLP over HTTP."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from unisono import __version__
from unisono.common.errors import UserError
from unisono.records.finding import Finding
from unisono.show.sinks.names import METRICS, METRICS_W, STEP, STEP_MEANING, dotted
from unisono.show.sinks.sink import OpenSink, Sink, SinkReading, SinkRun

INTERVAL, DEFAULT_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL", "10000"
METRICS_PATH = "/v1/metrics"


@dataclass(frozen=True)
class OpenTelemetry(Sink):
    """Follows the usual OTEL_ variables.

    :param endpoint: The collector, as in `http://localhost:4318`; by default what OTEL_EXPORTER_OTLP_ENDPOINT says.
    """

    name = "opentelemetry"
    package = "opentelemetry.exporter.otlp.proto.http"
    only_latest = True

    endpoint: str | None = None

    def __post_init__(self) -> None:
        if self.endpoint is not None and urlsplit(self.endpoint).scheme not in ("http", "https"):
            raise UserError(
                "`endpoint` of the sink `opentelemetry` should begin with http:// or https://. "
                "Found something else. Write: endpoint=http://localhost:4318"
            )

    def open(self, run: SinkRun) -> OpenSink:
        return _Collector(run, self._full_endpoint())

    def _full_endpoint(self) -> str | None:
        """With the path for metrics, where only the collector itself is named."""
        if self.endpoint is None or urlsplit(self.endpoint).path.strip("/"):
            return self.endpoint
        return self.endpoint.rstrip("/") + METRICS_PATH


class _Collector(OpenSink):
    def __init__(self, run: SinkRun, endpoint: str | None) -> None:
        self.seconds = float(os.environ.get(INTERVAL) or DEFAULT_INTERVAL) / 1_000
        self._data = import_module("opentelemetry.sdk.metrics.export")
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        self._exporter = exporter.OTLPMetricExporter(endpoint=endpoint)
        self._context = import_module("opentelemetry.context")
        self._resource = import_module("opentelemetry.sdk.resources").Resource.create(_attributes(run))
        self._scope = import_module("opentelemetry.sdk.util.instrumentation").InstrumentationScope(
            "unisono", __version__
        )
        self._run = run
        self._reading: SinkReading | None = None
        self._findings: Mapping[str, Finding] = {}
        self._closed = False
        # It writes several lines for each failure; we tell it once. The script's own exporter keeps its voice.
        # Last, since nobody removes it if the rest fails.
        self._thread, self._logger = threading.get_ident(), logging.getLogger(exporter.__name__)
        self._logger.addFilter(self._is_not_ours)

    def metrics(self, readings: Sequence[SinkReading]) -> None:
        for reading in readings:
            self._reading = self._reading.followed_by(reading) if self._reading else reading
        self._send()

    def finding(self, finding: Finding) -> None:
        self._findings = {**self._findings, finding.code: finding}
        self._send()

    def close(self, verdict: str) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._send({"verdict": verdict})
        finally:
            self._exporter.shutdown()
            self._logger.removeFilter(self._is_not_ours)

    def _is_not_ours(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread

    def _send(self, ended: Mapping[str, str] | None = None) -> None:
        metrics = [*self._numbers(), *self._found()]
        running = [({}, 1)] if ended is None else [(ended, 0)]
        metrics.append(self._gauge("running", "1 while the run lasts, 0 when it has ended", running))
        scopes = [self._data.ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")]
        content = self._data.ResourceMetrics(resource=self._resource, scope_metrics=scopes, schema_url="")
        result = self._export(self._data.MetricsData(resource_metrics=[content]))
        if result is not self._data.MetricExportResult.SUCCESS:
            raise ConnectionError("the collector did not take the numbers")

    def _export(self, content: Any) -> Any:
        # Otherwise our requests become spans in the traces of a script that traces its own.
        key = self._context._SUPPRESS_INSTRUMENTATION_KEY
        token = self._context.attach(self._context.set_value(key, True))
        try:
            return self._exporter.export(content)
        finally:
            self._context.detach(token)

    def _numbers(self) -> Iterator[Any]:
        reading = self._reading
        if reading is None:
            return
        meanings, values = {STEP: STEP_MEANING, **METRICS}, {STEP: reading.step, **reading.values}
        for name, value in values.items():
            yield self._gauge(name, meanings[name], [({}, value)])
        for name, value_W in reading.values_W.items():
            known = [(rank, value) for rank, value in zip(self._run.ranks, value_W, strict=False) if value is not None]
            yield self._gauge(f"rank_{name}", METRICS_W[name], [({"rank": rank}, value) for rank, value in known])

    def _found(self) -> Iterator[Any]:
        points = [
            (
                {"code": one.code, "slug": one.slug, "severity": one.severity, "title": one.title, "ranks": one.ranks},
                1,
            )
            for one in self._findings.values()
        ]
        if points:
            yield self._gauge("finding", "1 for each finding of the run", points)

    def _gauge(self, name: str, meaning: str, points: Sequence[tuple[Mapping[str, Any], float]]) -> Any:
        now = time.time_ns()
        samples = [
            self._data.NumberDataPoint(attributes=attributes, start_time_unix_nano=now, time_unix_nano=now, value=value)
            for attributes, value in points
        ]
        return self._data.Metric(
            name=dotted(name), description=meaning, unit="1", data=self._data.Gauge(data_points=samples)
        )


def _attributes(run: SinkRun) -> dict[str, str]:
    """What is sent with everything. A name given by the usual variables stays."""
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {"unisono.run": run.name} | ({} if named else {"service.name": "unisono"})
