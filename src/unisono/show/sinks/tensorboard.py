"""TensorBoard: numbers as scalars, findings as texts, in an event file of our own."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

from unisono.records.finding import Finding
from unisono.show.sinks.names import checked_style, slashed
from unisono.show.sinks.sink import OpenSink, Sink, SinkReading, SinkRun
from unisono.show.sinks.words import lines


@dataclass(frozen=True)
class TensorBoard(Sink):
    """
    :param log_dir: Where the event file goes; by default `tensorboard` in the run's directory.
    :param names: `unisono`, or `manuals` for the manuals' names where they have one.
    """

    name = "tensorboard"
    package = "tensorboard"

    log_dir: str | None = None
    names: str = "unisono"

    def __post_init__(self) -> None:
        checked_style(self.names)

    def open(self, run: SinkRun) -> OpenSink:
        return _EventFile(Path(self.log_dir or run.directory / "tensorboard"), run.part, self.names)


class _EventFile(OpenSink):
    """Uses the package's records and messages. Its own writer would import TensorFlow wherever that is installed."""

    def __init__(self, log_dir: Path, part: str, style: str) -> None:
        self._event_type = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary_type = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._tensor_type = import_module("tensorboard.compat.proto.tensor_pb2").TensorProto
        self._records = import_module("tensorboard.summary.writer.record_writer").RecordWriter
        self._names, self._home = slashed(part, style), slashed(part)
        # More than one model, or a restart within the second, must not meet in one file.
        place = f"{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self._path = log_dir / f"events.out.tfevents.{int(time.time())}.{place}.unisono"
        self._last_step = 0
        self._write([self._event_type(wall_time=time.time(), file_version="brain.Event:2")])

    def metrics(self, readings: Sequence[SinkReading]) -> None:
        self._write([self._scalars(reading) for reading in readings])
        self._last_step = readings[-1].step

    def finding(self, finding: Finding) -> None:
        # Indented, it is shown as it is: nothing in it is taken for markup.
        text = "\n".join(f"    {line}" for line in lines(finding))
        self._write([self._text(f"finding/{finding.code}", finding.first_step, text)])

    def close(self, verdict: str) -> None:
        self._write([self._text("verdict", self._last_step, verdict)])

    def _scalars(self, reading: SinkReading) -> Any:
        values = [
            self._summary_type.Value(tag=self._names[name], simple_value=value)
            for name, value in reading.values.items()
        ]
        return self._event_type(wall_time=reading.time, step=reading.step, summary=self._summary_type(value=values))

    def _text(self, name: str, step: int, text: str) -> Any:
        value = self._summary_type.Value(
            tag=self._home["step"].removesuffix("step") + name,
            metadata={"plugin_data": {"plugin_name": "text"}},
            tensor=self._tensor_type(
                dtype="DT_STRING", string_val=[text.encode()], tensor_shape={"dim": [{"size": 1}]}
            ),
        )
        return self._event_type(wall_time=time.time(), step=step, summary=self._summary_type(value=[value]))

    def _write(self, events: Sequence[Any]) -> None:
        content = BytesIO()
        records = self._records(content)
        for event in events:
            records.write(event.SerializeToString())
        self._path.parent.mkdir(parents=True, exist_ok=True)
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("ab") as file:
                file.write(content.getbuffer())
        except OSError:
            # Half a record would hide everything behind it.
            with contextlib.suppress(OSError):
                os.truncate(self._path, size)
            raise
