"""A monitor of a plain module, in one process: what it writes, what it hands back, and how it ends."""

import gc
import json
import math
import multiprocessing
import re
import sys
import time
import weakref

import pytest
import torch
from torch import nn

import unisono
from unisono.listen import torch_patches
from unisono.monitor import exit_hooks, noted_exit
from unisono.monitor import monitor as monitors
from unisono.monitor.monitor import Monitor, NullMonitor
from unisono.records import DepartureRecord
from unisono.records.runfile import read_run, scan
from unisono.records.runfile.departures import departures_beside


@pytest.fixture(autouse=True)
def no_crash_so_far(monkeypatch, tmp_path):
    """A test that failed before leaves its error where a crash would."""
    monkeypatch.chdir(tmp_path)
    for name in ("UNISONO", "UNISONO_EVERY", "UNISONO_GUARD", "UNISONO_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("last_exc", "last_value"):
        monkeypatch.delattr(sys, name, raising=False)
    monkeypatch.setattr(noted_exit, "_newest", None)
    monkeypatch.setattr(exit_hooks, "_warned_at", None)
    yield
    assert torch_patches._patched.listeners == ()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), 0.01)


@pytest.fixture
def attach(model, optimizer, tmp_path):
    started = []

    def start(**options):
        started.append(unisono.attach(model, optimizer, run_dir=tmp_path / "run", **options))
        return started[-1]

    yield start
    for monitor in started:
        monitor.close()


def train(model, optimizer, steps=1, factor=1.0):
    """The losses and the norms of the gradients."""
    losses, norms = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss = (model(torch.full((2, 4), float(step))) - 1).square().mean() * factor
        loss.backward()
        losses.append(loss.item())
        norms.append(math.sqrt(sum(float(one.grad.double().square().sum()) for one in model.parameters())))
        optimizer.step()
    return losses, norms


def wait_until(is_so, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_so()


def rank_file(tmp_path):
    lines = [json.loads(line) for line in (tmp_path / "run" / "rank-0.jsonl").read_text().splitlines()]
    return [line for line in lines if line["type"] == "local"]


def test_the_run_is_written(attach, model, optimizer, tmp_path):
    monitor = attach()
    assert isinstance(monitor, Monitor)
    assert (monitor.rank, monitor.world, monitor.run_dir) == (0, 1, str(tmp_path / "run"))
    losses, norms = train(model, optimizer, 5)
    monitor.close()
    run = read_run(tmp_path / "run")
    assert [record.step for record in run.timeline()] == list(range(5))
    assert [record.loss_W[0] for record in run.timeline()] == pytest.approx(losses)
    assert [record.norm_W[0] for record in run.timeline()] == pytest.approx(norms)
    (attempt,) = run.attempts
    assert (attempt.world, attempt.first_step, attempt.groups) == (1, 0, ("0", "2"))
    assert attempt.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (attempt.steering, attempt.guard) == ("", "")
    assert [(end.steps, end.trained) for end in run.ends] == [(5, 4)]


def test_what_was_asked_for_is_written(attach, model, optimizer, tmp_path):
    with attach(first_step=7, schedule=unisono.every(3)):
        train(model, optimizer, 5)
    run = read_run(tmp_path / "run")
    assert run.attempts[0].first_step == 7
    assert [(record.step, record.heard) for record in run.timeline()] == [
        (7, True),
        (8, False),
        (9, False),
        (10, True),
        (11, False),
    ]


def test_a_second_monitor_of_the_same_run_is_another_attempt(attach, model, optimizer, tmp_path):
    for first_step in (0, 3):
        with attach(first_step=first_step):
            train(model, optimizer, 3)
    run = read_run(tmp_path / "run")
    assert [attempt.attempt for attempt in run.attempts] == [1, 2]
    assert [record.step for record in run.timeline()] == list(range(6))


def test_findings_are_known_while_training_runs(attach, model, optimizer):
    told = []
    monitor = attach(on_finding=told.append)
    assert monitor.findings == []
    train(model, optimizer, 30)
    train(model, optimizer, 30, factor=math.nan)
    monitor.close()
    assert monitor.findings
    assert {finding.code for finding in told} == {finding.code for finding in monitor.findings}
    # Whose list it is: the monitor's own stays as it is.
    monitor.findings.clear()
    assert monitor.findings


def test_closing_twice_ends_the_run_once(attach, model, optimizer, tmp_path, capfd):
    monitor = attach()
    train(model, optimizer)
    assert not monitor.closed
    monitor.close()
    assert monitor.closed
    monitor.close()
    assert capfd.readouterr().err.count("recorded in") == 1
    train(model, optimizer)
    assert len(read_run(tmp_path / "run").timeline()) == 1


def test_a_block_closes_it_also_when_it_raises(attach, model, optimizer, tmp_path):
    def fail():
        with attach():
            train(model, optimizer, 2)
            raise ValueError("injected")

    with pytest.raises(ValueError, match="injected"):
        fail()
    assert torch_patches._patched.listeners == ()
    assert [end.steps for end in read_run(tmp_path / "run").ends] == [2]


def test_a_closed_monitor_takes_every_call(attach, model, optimizer, tmp_path):
    monitor = attach()
    monitor.close()
    loss = torch.ones(())
    assert monitor.record_loss(loss) is loss
    monitor.record_validation(0.5)
    monitor.step()
    assert (monitor.findings, monitor.decisions, monitor.restore()) == ([], [], None)
    assert read_run(tmp_path / "run").validations == ()


def test_a_model_that_is_gone_retires_its_monitor(tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    monitor = unisono.attach(model, optimizer, run_dir=tmp_path / "run")
    train(model, optimizer, 3)
    gone = [weakref.ref(model), weakref.ref(model.weight)]
    began = time.monotonic()
    del model, optimizer
    gc.collect()
    assert time.monotonic() - began < 2
    assert [one() for one in gone] == [None, None]
    assert monitor.closed
    assert torch_patches._patched.listeners == ()
    monitor.close()
    assert [end.steps for end in read_run(tmp_path / "run").ends] == [3]


@pytest.mark.parametrize("loss", [torch.tensor(3.0, requires_grad=True), 3.0])
def test_a_recorded_loss_comes_back_untouched_and_is_written(attach, model, optimizer, tmp_path, loss):
    with attach() as monitor:
        assert monitor.record_loss(loss) is loss
        train(model, optimizer)
    assert read_run(tmp_path / "run").timeline()[0].loss_W == (3.0,)
    assert not isinstance(loss, torch.Tensor) or loss.grad is None


def test_nonsense_for_a_loss_is_told_and_comes_back(attach, model, optimizer, capfd):
    nonsense = object()
    with attach() as monitor:
        assert monitor.record_loss(nonsense) is nonsense
        train(model, optimizer)
    assert "listening failed (TypeError" in capfd.readouterr().err


def test_a_validation_is_written_behind_its_step_and_one_a_step(attach, model, optimizer, tmp_path):
    with attach() as monitor:
        monitor.record_validation(0.1)
        train(model, optimizer, 2)
        monitor.record_validation(torch.tensor(0.5))
        monitor.record_validation(0.9)
        train(model, optimizer)
        monitor.record_validation(0.6)
    found = [(record.step, record.rank, record.validation) for record in read_run(tmp_path / "run").validations]
    assert found == [(-1, 0, 0.1), (1, 0, 0.5), (2, 0, 0.6)]


def test_nonsense_for_a_validation_is_told_and_the_next_one_counts(attach, model, optimizer, tmp_path, capfd):
    with attach() as monitor:
        train(model, optimizer)
        monitor.record_validation(torch.zeros(3))
        monitor.record_validation(0.5)
    assert "`record_validation` failed (ValueError: it should be one number" in capfd.readouterr().err
    assert [record.validation for record in read_run(tmp_path / "run").validations] == [0.5]


def test_a_validation_reaches_the_sinks(attach, model, optimizer, tmp_path):
    with attach(sinks=["prometheus"]) as monitor:
        train(model, optimizer)
        monitor.record_validation(0.625)
    text = (tmp_path / "run" / "unisono.prom").read_text()
    assert re.search(r"^unisono_validation{.*} 0.625$", text, re.MULTILINE)


def test_steps_may_be_ended_by_hand(attach, model, tmp_path):
    monitor = attach()
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        monitor.step()
    monitor.close()
    assert [record.skipped for record in read_run(tmp_path / "run").timeline()] == [False] * 3


def test_the_parts_of_a_step_hear_that_it_is_over(attach):
    class Part:
        ended, recorded, decisions, own = 0, [], ["decided"], None
        skipped = left = False

        def step_ended(self):
            self.ended += 1

        def record_loss(self, loss):
            self.recorded = [*self.recorded, loss]

        def restore(self):
            return 41

        def leave(self):
            self.left = True

    monitor, steering, guard = attach(), Part(), Part()
    guard.own = guard
    monitor._steering = steering
    monitor.guarded_by(guard)
    monitor.step()
    assert monitor.record_loss(2.0) == 2.0
    assert (steering.ended, guard.ended, guard.recorded) == (1, 1, [2.0])
    assert monitor.decisions == ["decided"]
    assert monitor.restore() == 41
    assert monitor._tracker.step == 42
    assert monitor._tracker.guarded_by is guard
    monitor.close()
    assert guard.left


def test_without_a_guard_nothing_is_restored(attach, model, optimizer, tmp_path):
    monitor = attach()
    assert monitor.restore() is None
    assert monitor.decisions == []
    train(model, optimizer)
    monitor.close()
    assert [record.step for record in read_run(tmp_path / "run").timeline()] == [0]


def test_in_a_forked_child_nothing_is_closed(attach):
    monitor = attach()
    monitor._pid += 1
    monitor.close()
    monitor.retire()
    assert not monitor.closed
    monitor._pid -= 1


def test_a_crash_leaves_the_last_steps_behind(attach, model, optimizer, tmp_path, monkeypatch):
    monitor = attach()
    losses, norms = train(model, optimizer, 5)
    monkeypatch.setattr(sys, "last_value", ValueError("injected"), raising=False)
    monitor.close()
    found = rank_file(tmp_path)
    assert [line["step"] for line in found] == list(range(5))
    assert [line["loss"] for line in found] == pytest.approx(losses)
    assert [line["norm"] for line in found] == pytest.approx(norms)
    assert {(line["attempt"], line["rank"]) for line in found} == {(1, 0)}
    # The end of the run is written, too.
    assert [end.steps for end in read_run(tmp_path / "run").ends] == [5]


def test_last_steps_are_written_before_anything_is_waited_for(attach, model, optimizer, tmp_path, monkeypatch):
    monitor, written = attach(), []
    train(model, optimizer, 2)
    wait_until(lambda: len(monitor._last_steps.steps) == 2)
    close = monitor._exchange.close
    monkeypatch.setattr(
        monitor._exchange,
        "close",
        lambda word, patience: (written.append((patience, rank_file(tmp_path))), close(word, patience)),
    )
    monkeypatch.setattr(sys, "last_value", ValueError("injected"), raising=False)
    monitor.close()
    ((patience, lines),) = written
    assert patience == monitors.CRASH_PATIENCE
    assert [line["step"] for line in lines] == [0, 1]


def test_only_the_last_steps_are_kept(attach, model, optimizer, tmp_path, monkeypatch):
    monkeypatch.setattr(monitors, "RING", 3)
    monitor = attach()
    train(model, optimizer, 8)
    wait_until(lambda: monitor._last_steps.steps and monitor._last_steps.steps[-1].step == 7)
    exit_hooks.speak("SIGTERM")
    assert [line["step"] for line in rank_file(tmp_path)] == [5, 6, 7]
    monitor.close()


def test_an_ordinary_end_leaves_no_last_steps(attach, model, optimizer, tmp_path):
    callbacks = list(exit_hooks._callbacks)
    monitor = attach()
    assert len(exit_hooks._callbacks) == len(callbacks) + 1
    train(model, optimizer)
    monitor.close()
    assert exit_hooks._callbacks == callbacks
    exit_hooks.speak("SIGTERM")
    assert not (tmp_path / "run" / "rank-0.jsonl").exists()


def test_a_callback_that_fails_at_the_end_does_not_keep_others_from_theirs(monkeypatch):
    monkeypatch.setattr(exit_hooks, "_callbacks", [])
    said = []
    for callback in (said.append, lambda reason: 1 / 0):
        exit_hooks.on_exit(callback)
    exit_hooks.speak("warned")
    exit_hooks.speak("warned")
    assert said == ["warned"]


@pytest.mark.parametrize("word", ["off", "OFF"])
def test_turned_off_nothing_is_done(model, optimizer, monkeypatch, tmp_path, word):
    monkeypatch.setenv("UNISONO", word)
    backward = torch.autograd.backward
    monitor = unisono.attach(model, optimizer, run_dir=tmp_path / "run")
    assert isinstance(monitor, NullMonitor)
    with monitor:
        assert torch.autograd.backward is backward
        loss = torch.ones(())
        assert monitor.record_loss(loss) is loss
        monitor.record_validation(loss)
        monitor.step()
        assert (monitor.findings, monitor.decisions, monitor.restore(), monitor.run_dir) == ([], [], None, None)
    monitor.close()
    assert monitor.closed
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_set_up_is_said_and_training_goes_on(model, optimizer, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("UNISONO_EVERY", "often")
    assert isinstance(unisono.attach(model, optimizer, run_dir=tmp_path / "run"), NullMonitor)
    assert "cannot listen (ValueError: `UNISONO_EVERY` should be a number of steps" in capfd.readouterr().err
    train(model, optimizer)


def test_a_block_that_raises_ends_the_run_as_crashed(attach, model, optimizer, tmp_path):
    def fail():
        with attach():
            train(model, optimizer, 2)
            raise ValueError("as planned")

    with pytest.raises(ValueError, match="as planned"):
        fail()
    assert [end.ended for end in read_run(tmp_path / "run").ends] == ["crashed"]
    (departure,) = departures_beside(tmp_path / "run")
    assert (departure.rank, departure.step, departure.how) == (0, 1, "exception")
    assert departure.detail == "ValueError: as planned"


def test_an_error_that_leads_through_the_end_is_a_crash_and_one_that_was_met_before_is_not(
    attach, model, optimizer, tmp_path
):
    def ends(error):
        monitor = attach()
        train(model, optimizer)
        try:
            raise error
        except ValueError:
            pass
        finally:
            monitor.close()

    ends(ValueError("met"))
    with pytest.raises(KeyError):
        ends(KeyError("not met"))
    with pytest.raises(KeyboardInterrupt):
        ends(KeyboardInterrupt())
    assert [end.ended for end in read_run(tmp_path / "run").ends] == ["finished", "crashed", "killed"]


@pytest.mark.parametrize(
    ("code", "ended", "detail"),
    [
        (None, "finished", ""),
        (0, "finished", ""),
        (3, "crashed", "exit code 3"),
        ("no data", "crashed", "exit code 1"),
    ],
)
def test_a_process_that_exits_by_itself(attach, model, optimizer, tmp_path, code, ended, detail):
    monitor = attach()
    train(model, optimizer)
    with pytest.raises(SystemExit):
        sys.exit(code)
    monitor._close_at_exit()
    assert [(end.ended, end.detail) for end in read_run(tmp_path / "run").ends] == [(ended, detail)]


def test_a_model_that_goes_before_the_interpreter_does(tmp_path):
    """The frames that held it are gone when Python comes to `atexit`."""
    model = nn.Linear(4, 1)
    monitor = unisono.attach(model, run_dir=tmp_path / "run")
    monitor.step()
    with pytest.raises(SystemExit):
        sys.exit(3)
    monitor.retire()
    wait_until(lambda: read_run(tmp_path / "run").ends)
    assert [(end.ended, end.detail) for end in read_run(tmp_path / "run").ends] == [("crashed", "exit code 3")]
    monitor.close()


@pytest.mark.parametrize("way", ["exits", "raises"])
def test_a_process_that_fails_when_its_model_has_gone(tmp_path, monkeypatch, way):
    """`sys.exit(main())`: the model goes with the frame of `main`, before anybody knows how the process ends."""
    model = nn.Linear(4, 1)
    monitor = unisono.attach(model, run_dir=tmp_path / "run")
    monitor.step()
    monitor.retire()
    if way == "exits":
        with pytest.raises(SystemExit):
            sys.exit(3)
    else:
        monkeypatch.setattr(sys, "last_value", ValueError("in the evaluation"), raising=False)
    monitor._close_at_exit()
    assert [end.ended for end in read_run(tmp_path / "run").ends] == ["finished", "crashed"]
    (gone,) = [record for _, record in scan(tmp_path / "run") if isinstance(record, DepartureRecord)]
    assert gone.how == ("exit" if way == "exits" else "exception")


def test_what_was_said_of_rank_0_is_taken_back(attach, model, optimizer, tmp_path):
    monitor = attach()
    train(model, optimizer)
    gone = [DepartureRecord(1, 0, 1.0, rank, how, told_by=0) for rank, how in ((1, "silence"), (2, "lost"))]
    monitor._departed(gone)
    assert departures_beside(tmp_path / "run") == gone
    monitor._rank0_is_back()
    assert departures_beside(tmp_path / "run") == gone[1:]


def test_an_exit_that_was_caught_is_none(attach, model, optimizer, tmp_path):
    monitor = attach()
    with pytest.raises(SystemExit):
        sys.exit(3)
    train(model, optimizer)
    monitor._close_at_exit()
    assert [end.ended for end in read_run(tmp_path / "run").ends] == ["finished"]


@pytest.mark.parametrize(("code", "ended"), [(0, ["finished"]), (3, ["finished", "crashed"])])
def test_what_fails_after_the_process_group_has_ended_is_no_good_end(attach, model, optimizer, tmp_path, code, ended):
    monitor = attach()
    train(model, optimizer, 3)
    monitor.close()
    with pytest.raises(SystemExit):
        sys.exit(code)
    for _ in range(2):
        monitor.tell_of_bad_exit()
    assert [end.ended for end in read_run(tmp_path / "run").ends] == ended
    gone = [record for _, record in scan(tmp_path / "run") if isinstance(record, DepartureRecord)]
    told = [(one.rank, one.how, one.detail, one.step) for one in gone]
    assert told == ([] if code == 0 else [(0, "exit", "exit code 3", 2)])


def test_a_trial_that_is_stopped_has_finished(attach, model, optimizer, tmp_path, monkeypatch):
    monkeypatch.setenv("UNISONO_TRIAL", "1")
    attach()
    train(model, optimizer)
    exit_hooks.speak(exit_hooks.SIGTERM)
    assert [end.ended for end in read_run(tmp_path / "run").ends] == ["finished"]
    assert departures_beside(tmp_path / "run") == []


def test_sigterm_is_the_end_of_the_run_and_takes_less_than_a_second(attach, model, optimizer, tmp_path):
    attach()
    train(model, optimizer)
    began = time.monotonic()
    exit_hooks.speak(exit_hooks.SIGTERM)
    assert time.monotonic() - began < 1.0
    assert [end.ended for end in read_run(tmp_path / "run").ends] == ["killed"]


def trains_in_a_child(folder):
    # OpenMP does not survive a fork.
    torch.set_num_threads(1)
    model = nn.Linear(4, 1)
    unisono.attach(model, run_dir=folder).step()


def test_a_process_of_multiprocessing_comes_to_its_end(tmp_path):
    child = multiprocessing.get_context("fork").Process(target=trains_in_a_child, args=(tmp_path / "run",))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert [end.ended for end in read_run(tmp_path / "run").ends] == ["finished"]
