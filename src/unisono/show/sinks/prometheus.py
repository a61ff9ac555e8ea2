"""Prometheus: the newest numbers and the findings as gauges, in a text file or for a scraper on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from unisono.common.console import Console
from unisono.common.errors import UserError
from unisono.common.terminal import plain
from unisono.records.finding import Finding
from unisono.show.sinks.names import METRICS, METRICS_W, STEP, STEP_MEANING, prometheus_name
from unisono.show.sinks.sink import OpenSink, Sink, SinkReading, SinkRun

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Prometheus(Sink):
    """
    :param textfile: For the node exporter's textfile collector; by default `unisono.prom` in the run's directory,
        unless there is a port. Further models of a process write beside it, as in `unisono-model-2.prom`.
    :param port: Serves the same on this machine alone, at http://127.0.0.1:port/metrics, while the run lasts.
        One model is shown there; if it is taken, further ones write to their text files.
    """

    name = "prometheus"
    package = "prometheus_client"
    only_latest = True

    textfile: str | None = None
    port: int | None = None

    def __post_init__(self) -> None:
        if self.port is not None and not 0 < self.port < 65536:
            raise UserError(f"`port` of the sink `prometheus` should be from 1 to 65535. Found {self.port}.")

    def open(self, run: SinkRun) -> OpenSink:
        textfile = None if self.textfile is None else _for_part(Path(self.textfile), run.part)
        return _Gauges(run, textfile, self.port)


class _Gauges(OpenSink):
    """A collector: what it holds is turned into text when somebody asks. Each change replaces a whole mapping."""

    seconds = 5.0

    def __init__(self, run: SinkRun, textfile: Path | None, port: int | None) -> None:
        self._client = import_module("prometheus_client")
        self._family = import_module("prometheus_client.core").GaugeMetricFamily
        self._run = run
        self._textfile = self._own_textfile() if textfile is None and port is None else textfile
        self._reading: SinkReading | None = None
        self._findings: Mapping[str, Finding] = {}
        self._running = 1
        self._registry = self._client.CollectorRegistry()
        self._registry.register(self)
        self._write()
        self._server = None
        if port is not None:
            self._serve(port)

    def metrics(self, readings: Sequence[SinkReading]) -> None:
        for reading in readings:
            self._reading = self._reading.followed_by(reading) if self._reading else reading
        self._write()

    def finding(self, finding: Finding) -> None:
        self._findings = {**self._findings, finding.code: finding}
        self._write()

    def close(self, verdict: str) -> None:
        self._running = 0
        self._write()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def collect(self) -> Iterator[Any]:
        """Called by the registry, for the file or for a scraper."""
        name = self._run.name
        running = self._family(prometheus_name("running"), "1 while the run lasts, 0 when it has ended", labels=["run"])
        running.add_metric([name], self._running)
        yield running
        if self._reading is not None:
            yield from self._numbers(name, self._reading)
        found = self._family(
            prometheus_name("finding"),
            "1 for each finding of the run",
            labels=["run", "code", "slug", "severity", "title", "ranks"],
        )
        for one in self._findings.values():
            ranks = ",".join(map(str, one.ranks))
            found.add_metric([name, one.code, one.slug, one.severity, one.title, ranks], 1)
        yield found

    def _numbers(self, run: str, reading: SinkReading) -> Iterator[Any]:
        meanings, values = {STEP: STEP_MEANING, **METRICS}, {STEP: reading.step, **reading.values}
        for name, value in values.items():
            gauge = self._family(prometheus_name(name), meanings[name], labels=["run"])
            gauge.add_metric([run], value)
            yield gauge
        for name, value_W in reading.values_W.items():
            gauge = self._family(prometheus_name(f"rank_{name}"), METRICS_W[name], labels=["run", "rank"])
            for rank, worker_value in zip(self._run.ranks, value_W, strict=False):
                if worker_value is not None:
                    gauge.add_metric([run, str(rank)], worker_value)
            yield gauge

    def _serve(self, port: int) -> None:
        try:
            self._server, _ = self._client.start_http_server(port, HOST, registry=self._registry)
        except OSError:
            if not self._run.part:
                raise
            # Another model of this job will hold it as long as we run.
            self._textfile = self._textfile or self._own_textfile()
            self._write()
            Console().say(
                f"the sink `prometheus` shows one model at a port, and port {port} is taken by another; "
                f"the numbers of {plain(self._run.part)} are in {plain(str(self._textfile))}"
            )

    def _own_textfile(self) -> Path:
        return self._run.directory / "unisono.prom"

    def _write(self) -> None:
        if self._textfile is not None:
            # Under another name first, then renamed.
            self._client.write_to_textfile(str(self._textfile), self._registry)


def _for_part(textfile: Path, part: str) -> Path:
    """A name of its own for each model of a job: `unisono-model-2.prom`."""
    return textfile.with_stem("-".join([textfile.stem, *Path(part).parts]))
