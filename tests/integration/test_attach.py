"""`attach` in one process: which backward belongs to which step, and how little it leaves behind."""

import gc
import itertools
import math
import multiprocessing
import os
import weakref

import pytest
import torch
from torch import nn

import unisono
from unisono.listen import torch_patches
from unisono.listen.gradient_reader import GradientReader
from unisono.monitor import run_recorder
from unisono.records.runfile import read_run


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run_recorder._run_of_this_process.cache_clear()
    monkeypatch.setattr(run_recorder, "_unnamed", itertools.count(1))
    torch.set_num_threads(1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), 0.01)


def loss_of(model, value=1.0):
    return (model(torch.full((2, 4), float(value))) - 1).square().mean()


def records(monitor):
    monitor.close()
    return read_run(monitor.run_dir).timeline()


def test_a_plain_module_gives_local_signals(model, optimizer, capfd):
    monitor = unisono.attach(model, optimizer)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        losses.append(loss.item())
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
        optimizer.step()
    found = records(monitor)
    assert [record.loss_W[0] for record in found] == pytest.approx(losses)
    assert found[-1].norm_W[0] == pytest.approx(norm)
    assert found[-1].grad_norm == pytest.approx(norm)
    assert found[-1].cos_mean is None
    assert "one worker only" in capfd.readouterr().err


def test_off_does_nothing(model, optimizer, monkeypatch, tmp_path):
    monkeypatch.setenv("UNISONO", "off")
    monitor = unisono.attach(model, optimizer)
    loss = loss_of(model)
    assert monitor.record_loss(loss) is loss
    monitor.step()
    monitor.close()
    assert list(tmp_path.iterdir()) == []


def test_closing_puts_torch_back(model, optimizer):
    places = [(torch.autograd, "backward"), (torch.amp.GradScaler, "scale"), (torch.amp.GradScaler, "step")]
    before = [getattr(owner, name) for owner, name in places]
    monitor = unisono.attach(model, optimizer)
    assert torch.autograd.backward is not before[0]
    monitor.close()
    monitor.close()
    assert [getattr(owner, name) for owner, name in places] == before
    assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    assert torch_patches._patched.listeners == ()


def test_the_users_loss_comes_back_untouched_and_wins(model, optimizer):
    with unisono.attach(model, optimizer) as monitor:
        loss = loss_of(model)
        assert monitor.record_loss(loss) is loss
        (loss * 1000).backward()
        optimizer.step()
    assert read_run(monitor.run_dir).timeline()[0].loss_mean == pytest.approx(loss.item())


def test_steps_without_a_torch_optimizer_are_marked_by_hand(model):
    monitor = unisono.attach(model)
    for _ in range(4):
        model.zero_grad()
        loss_of(model).backward()
        monitor.step()
    assert len(records(monitor)) == 4


def test_accumulation_counts_one_step(model, optimizer):
    monitor = unisono.attach(model, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        total = 0.0
        for micro in range(3):
            loss = loss_of(model, micro) / 3
            total += loss.item()
            loss.backward()
        optimizer.step()
    found = records(monitor)
    assert len(found) == 2
    assert found[-1].loss_mean == pytest.approx(total)


def test_two_optimizers_of_one_model_count_one_step(model):
    first, last = (torch.optim.SGD(model[index].parameters(), 0.01) for index in (0, 2))
    monitor = unisono.attach(model)
    for _ in range(3):
        model.zero_grad()
        loss_of(model).backward()
        first.step()
        last.step()
    assert len(records(monitor)) == 3


def test_a_closure_counts_one_step(model):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    monitor = unisono.attach(model, optimizer)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert [record.step for record in records(monitor)] == [0, 1, 2]


def test_gradients_dropped_without_a_step_are_a_skipped_step(model, optimizer):
    monitor = unisono.attach(model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model).backward()
        if step != 1:
            optimizer.step()
    found = records(monitor)
    assert [record.skipped for record in found] == [False, True, False, False]
    assert [record.skipped_steps for record in found] == [0, 1, 1, 1]


def test_a_scaler_that_meets_infinity_skips_a_step(model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    monitor = unisono.attach(model, optimizer)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(model)
        losses.append(loss.item())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    found = records(monitor)
    assert len(found) == 4
    assert found[0].skipped
    assert found[0].finite_W == (False,)
    assert [record.loss_mean for record in found] == pytest.approx(losses)


def test_another_models_backward_through_this_one_is_no_step(model, optimizer):
    generator = nn.Linear(4, 4)
    other = torch.optim.SGD(generator.parameters(), 0.01)
    monitor = unisono.attach(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        other.zero_grad()
        model(generator(torch.ones(2, 4))).mean().backward()
        other.step()
    found = records(monitor)
    assert len(found) == 3
    assert not any(record.skipped for record in found)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_another_model_through_gradients_zeroed_in_place(model, optimizer, set_to_none):
    generator = nn.Linear(4, 4)
    other = torch.optim.SGD(generator.parameters(), 0.01)
    monitor = unisono.attach(model, optimizer)
    losses = []
    for _ in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = loss_of(model)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        model(generator(torch.ones(2, 4))).mean().backward()
        other.step()
    assert [record.loss_mean for record in records(monitor)] == pytest.approx(losses)


class Towers(nn.Module):
    """Each input goes through one of two towers, so that whole parts get no gradient."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, inputs, left):
        return (self.left if left else self.right)(inputs)


def test_a_step_that_reaches_no_sentry_is_still_a_step():
    model = Towers()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    monitor = unisono.attach(model, optimizer, schedule=unisono.every(100))
    for step in range(20):
        optimizer.zero_grad()
        model(torch.ones(2, 4), left=step % 3 == 0).square().mean().backward()
        optimizer.step()
    found = records(monitor)
    assert [record.step for record in found] == list(range(20))
    assert sum(record.loss_mean is None for record in found) <= 1


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("injected")


def test_a_backward_that_fails_is_no_reading(model, optimizer):
    monitor = unisono.attach(model, optimizer)
    optimizer.zero_grad()
    hidden = Breaks.apply(model[0](torch.ones(2, 4)))
    with pytest.raises(ValueError, match="injected"):
        model[2](hidden.relu()).mean().backward()
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    optimizer.step()
    (record,) = records(monitor)
    assert record.loss_mean == pytest.approx(loss.item())
    assert record.norm_W[0] == pytest.approx(norm)


def test_own_step_numbers_and_a_second_attempt(model, optimizer):
    for first_step in (0, 5):
        monitor = unisono.attach(model, optimizer, run_dir="again", first_step=first_step)
        for _ in range(8):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        monitor.close()
    run = read_run("again")
    assert [attempt.first_step for attempt in run.attempts] == [0, 5]
    assert [record.step for record in run.timeline()] == list(range(13))


def test_a_failing_probe_is_said_once_and_training_goes_on(model, optimizer, monkeypatch, capfd):
    def fail(*_):
        raise ValueError("injected")

    monkeypatch.setattr(GradientReader, "hear", fail)
    monitor = unisono.attach(model, optimizer)
    for _ in range(20):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert len(records(monitor)) == 20
    assert capfd.readouterr().err.count("listening failed (ValueError: injected)") == 1


def test_interrupts_pass_through(model, optimizer, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(GradientReader, "open", interrupt)
    with unisono.attach(model, optimizer), pytest.raises(KeyboardInterrupt):
        loss_of(model).backward()


def test_forked_children_are_deaf(model, optimizer):
    monitor = unisono.attach(model, optimizer)
    loss_of(model).backward()

    def train_in_child():
        optimizer.step()
        os._exit(0 if monitor._tracker.step == 0 else 1)

    child = multiprocessing.get_context("fork").Process(target=train_in_child)
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert records(monitor) == ()


def test_the_monitor_keeps_neither_loss_nor_model_alive():
    inner = nn.Sequential(nn.Linear(4, 1))
    with unisono.attach(inner) as monitor:
        loss = loss_of(inner)
        gone = [weakref.ref(loss), weakref.ref(inner), weakref.ref(inner[0].weight)]
        monitor.record_loss(loss)
        loss.backward()
        monitor.step()
        del loss, inner
        gc.collect()
        assert [reference() for reference in gone] == [None, None, None]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (lambda: ("model", None), TypeError, "should be a torch module"),
        (lambda: (nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters())), ValueError, "Found none of them"),
        (lambda: (nn.Linear(1, 1), object()), TypeError, "param_groups"),
    ],
)
def test_wrong_arguments_are_explained(arguments, error, words):
    with pytest.raises(error, match=words):
        unisono.attach(*arguments())


@pytest.mark.parametrize(
    ("wrapped", "words"),
    [
        (lambda: nn.DataParallel(nn.Linear(1, 1)), "Found DataParallel"),
        (lambda: nn.Linear(1, 1).requires_grad_(False), "no trainable parameters"),
    ],
)
def test_what_cannot_be_heard_is_said_in_one_line(wrapped, words, capfd):
    unisono.attach(wrapped()).close()
    said = capfd.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_an_unwrapped_model_of_several_workers_is_not_listened_to(model, monkeypatch, capfd, tmp_path):
    for name, answer in (("is_initialized", True), ("get_rank", 0), ("get_world_size", 4)):
        monkeypatch.setattr(torch.distributed, name, lambda answer=answer: answer)
    unisono.attach(model).close()
    assert "wrapped in DistributedDataParallel. Found Sequential" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_old_torch_is_refused(model, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.1.0a0+nv23")
    with pytest.raises(RuntimeError, match=r"needs torch 2\.\d+ or newer. Found torch 2\.1"):
        unisono.attach(model)
