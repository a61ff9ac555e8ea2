"""Sinks beside a real job: they get its numbers and its fault, and training does not notice them."""

import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import unisono
from launch import launch, torchrun, under_unisono
from unisono.monitor import run_recorder
from unisono.records.runfile import read_run
from unisono.show.sinks.sink import OpenSink, Sink

JOB = Path(__file__).parents[1] / "jobs" / "duplicated.py"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        # The first call meets a server in trouble.
        self.send_response(200 if len(self.server.got) > 1 else 503)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def pager():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.got = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def weights(directory):
    return [json.loads((directory / f"weights.{rank}.json").read_text()) for rank in range(2)]


def scalars(directory, tag):
    return EventAccumulator(str(directory), size_guidance={"scalars": 0}).Reload().Scalars(tag)


@pytest.mark.slow
def test_a_fault_reaches_the_sinks_and_the_weights_do_not_change(tmp_path, pager):
    for folder in ("alone", "with"):
        (tmp_path / folder).mkdir()
    alone = launch(torchrun(2, JOB), cwd=tmp_path, env={"RESULTS": tmp_path / "alone"})
    assert alone.returncode == 0, alone
    options = [
        *("--out", tmp_path / "run", "--sink", "tensorboard", "--sink", "prometheus"),
        *("--sink", f"webhook:url=http://127.0.0.1:{pager.server_port}/secret"),
        # These fail: a folder that is not there, a server that is down, and a run that nobody has begun.
        *("--sink", f"prometheus:textfile={tmp_path}/nowhere/x.prom"),
        *("--sink", "webhook:url=http://127.0.0.1:1/secret", "--sink", "wandb"),
    ]
    outcome = launch(under_unisono(torchrun(2, JOB), *options), cwd=tmp_path, env={"RESULTS": tmp_path / "with"})
    assert outcome.returncode == 0, outcome
    assert weights(tmp_path / "with") == weights(tmp_path / "alone")
    assert outcome.stdout == alone.stdout

    found = [content["finding"]["code"] for content in pager.got]
    assert found[0] == "UN101", "while the server is in trouble"
    assert "UN101" in found[1:], "and once more"
    assert pager.got[0]["run"] == "run"
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert "unisono/finding/UN101" in events.Tags()["tensors"]
    [verdict] = events.Tensors("unisono/verdict")
    assert b"UN101 duplicated-data" in verdict.tensor_proto.string_val[0]
    steps = [record.step for record in read_run(tmp_path / "run").timeline()]
    assert scalars(tmp_path / "run" / "tensorboard", "unisono/loss_mean")[-1].step == steps[-1]
    assert 'code="UN101"' in (tmp_path / "run" / "unisono.prom").read_text()

    told = outcome.stderr.decode()
    assert told.count("the sink `prometheus` fails (FileNotFoundError") == 1
    assert told.count("the sink `webhook` fails (ConnectionError: 127.0.0.1") == 1, "both of them, within a minute"
    assert told.count("the sink `wandb` fails (no W&B run is active") == 1
    assert "webhook missed UN101" in told
    assert "secret" not in told


class Raising(Sink):
    name = "raising"

    def open(self, run):
        return OpenRaising()


class OpenRaising(OpenSink):
    def metrics(self, readings):
        raise RuntimeError("no")

    finding = close = metrics


@pytest.fixture
def fresh_process(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run_recorder._run_of_this_process.cache_clear()
    monkeypatch.setattr(run_recorder, "_unnamed", itertools.count(1))
    torch.set_num_threads(1)


def train(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    monitor = unisono.attach(model, optimizer, **options)
    for step in range(5):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(step))).square().mean().backward()
        optimizer.step()
    return monitor


def test_attach_takes_names_and_objects(fresh_process, monkeypatch, capfd):
    monkeypatch.setenv("UNISONO_SINKS", "prometheus")
    monitor = train(nn.Linear(4, 1), sinks=["tensorboard", Raising()])
    monitor.close()
    directory = Path(monitor.run_dir)
    steps = [record.step for record in read_run(directory).timeline()]
    assert scalars(directory / "tensorboard", "unisono/grad_norm")[-1].step == steps[-1] == 4
    assert "unisono_step" in (directory / "unisono.prom").read_text()
    assert "the sink `raising` fails (RuntimeError: no); training is not affected" in capfd.readouterr().err


def test_the_norm_that_clipping_returns_reaches_the_sinks_at_every_step(fresh_process):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    sinks = ["tensorboard:names=manuals", "prometheus"]
    monitor = unisono.attach(model, optimizer, schedule=unisono.every(10), sinks=sinks)
    norms = []
    for step in range(20):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(1 + step % 3))).square().mean().backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        # Readings of the same moment are merged.
        time.sleep(0.025)
    monitor.close()
    directory = Path(monitor.run_dir)
    assert sum(record.heard for record in read_run(directory).timeline()) < 5
    points = scalars(directory / "tensorboard", "train/global_grad_norm")
    assert [point.step for point in points] == list(range(20))
    assert [point.value for point in points] == pytest.approx(norms, rel=1e-5)
    (line,) = [line for line in (directory / "unisono.prom").read_text().splitlines() if "unisono_grad_norm{" in line]
    assert float(line.split()[-1]) == pytest.approx(norms[-1], rel=1e-5)


def test_models_of_one_process_have_names_of_their_own(fresh_process):
    monitors = [train(nn.Linear(4, 1), sinks="prometheus") for _ in range(2)]
    for monitor in monitors:
        monitor.close()
    first, second = (Path(monitor.run_dir, "unisono.prom").read_text() for monitor in monitors)
    name = Path(monitors[0].run_dir).name
    assert f'unisono_step{{run="{name}"}} 4' in first
    assert f'unisono_step{{run="{name}/model-2"}} 4' in second


def test_attach_refuses_an_unknown_sink(fresh_process):
    with pytest.raises(ValueError, match="Found `tensorbord`"):
        train(nn.Linear(4, 1), sinks=["tensorbord"])
