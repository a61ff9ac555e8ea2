import pytest
import torch

from unisono.common.errors import UserError
from unisono.lab.bench import measuring
from unisono.lab.bench.request import usual


@pytest.fixture
def launched(monkeypatch):
    """The trainings that would be started; nothing is."""
    asked = []
    monkeypatch.setattr(measuring, "reads", lambda request: ([], []))
    monkeypatch.setattr(measuring, "machine", lambda device: {"device": device})
    monkeypatch.setattr(measuring, "_trained", lambda request: asked.append(request) or dict.fromkeys(request.parts, 1))
    return asked


def test_two_workers_do_everything_in_one_go(launched):
    found = measuring.measure(usual("cpu", None, 2), lambda text: None)
    assert [(request.workers, request.parts) for request in launched] == [(2, ("step", "routes"))]
    assert found == {"machine": {"device": "cpu"}, "buffers": [], "model": [], "step": 1, "routes": 1}


@pytest.mark.parametrize(("device", "steered"), [("cpu", 50_000_000), ("cuda", 10_000_000)])
def test_one_worker_gets_another_for_steering(launched, device, steered):
    found = measuring.measure(usual(device, 50_000_000, 1), lambda text: None)
    step, routes = launched
    assert (step.workers, step.parts, step.parameters) == (1, ("step",), 50_000_000)
    assert (routes.workers, routes.parts, routes.parameters) == (2, ("routes",), steered)
    assert {"step", "routes"} <= found.keys()


def test_reads_are_made_with_one_thread_and_with_all(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr(measuring.reading_cost, "of_buffers", lambda sizes, dtypes, stopwatch: [{"elements": 1}])
    monkeypatch.setattr(measuring.reading_cost, "of_model", lambda shape, dtype, stopwatch: {"dtype": dtype})
    buffers, models = measuring.reads(usual("cpu", None, None))
    assert set_to == [1, 3]
    assert buffers == [{"elements": 1, "threads": 1}, {"elements": 1, "threads": 3}]
    assert [(row["dtype"], row["threads"]) for row in models] == [
        (dtype, threads) for threads in (1, 3) for dtype in (torch.float32, torch.bfloat16)
    ]


def test_what_cannot_fit_is_told_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(measuring.reading_cost, "free_bytes", lambda device: 3 * 10**8)
    measuring.check(usual("cpu", 10_000_000, 1))
    with pytest.raises(UserError, match=r"2 workers need about 0.4 GB. Found 0.3 GB free"):
        measuring.check(usual("cpu", 10_000_000, 2))


def test_a_training_that_fails_is_told_in_one_line(tmp_path, monkeypatch):
    failing = tmp_path / "job.py"
    failing.write_text("raise SystemExit('no luck')\n")
    monkeypatch.setattr(measuring, "JOB", failing)
    monkeypatch.setattr(measuring, "torchrun", lambda workers, script, *arguments: ["python", str(script)])
    with pytest.raises(UserError, match="exit code 1: no luck"):
        measuring._trained(usual("cpu", None, None))
