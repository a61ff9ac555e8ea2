"""The guard's hooks beside a real training loop, in a group of one: what is skipped, put back, refused and let go."""

import gc
import math

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import unisono
from group_of_one import group_of_one
from unisono.listen import torch_patches
from unisono.monitor.guard_setup import guard_hooks_of
from unisono.policy import Row
from unisono.records.runfile import read_run

INPUTS = torch.arange(24.0).reshape(6, 4) / 10
OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9, weight_decay=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
}


@pytest.fixture(scope="module", autouse=True)
def group():
    with group_of_one():
        yield


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch):
    monkeypatch.delenv("UNISONO_GUARD", raising=False)
    yield
    # Let go of by hand: collecting all garbage after each test would take longer than the tests.
    for listener in torch_patches._patched.listeners:
        listener.release()
    assert torch_patches._patched.listeners == ()


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


class Guarded:
    """A guarded model; what its gradients are multiplied by is up to the test."""

    def __init__(self, tmp_path, guard=None, optimizer="momentum", model=None, given=True, **options):
        self.model = DistributedDataParallel(small_model()) if model is None else model
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        optimizers = self.optimizer if given else None
        guard = unisono.guard() if guard is None else guard
        self.monitor = unisono.attach(self.model, optimizers, guard=guard, run_dir=tmp_path / "run", **options)
        self.hooks = guard_hooks_of(self.model)
        self.factor, self.run_dir, self.states = 1.0, tmp_path / "run", []
        self._watched = [parameter.register_hook(self.spoil) for parameter in self.model.parameters()]

    def spoil(self, gradient):
        return gradient * self.factor

    def backward(self, factor=1.0):
        self.factor = factor
        loss = self.model(INPUTS).square().mean()
        loss.backward()
        return loss

    def train(self, factor=1.0):
        self.optimizer.zero_grad()
        self.backward(factor)
        self.optimizer.step()
        self.states.append(self.state)

    @property
    def state(self):
        """Weights, buffers, and all that the optimizer remembers."""
        held = {name: value.clone() for name, value in self.model.state_dict().items()}
        for index, entries in enumerate(self.optimizer.state.values()):
            held |= {f"{index}.{name}": value.clone() for name, value in entries.items() if torch.is_tensor(value)}
        return held

    @property
    def decisions(self):
        return [(decision.step, decision.action) for decision in self.monitor.decisions]


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def differs(one, other):
    return not all(torch.equal(one[name], other[name]) for name in other)


@pytest.fixture
def start(tmp_path):
    jobs = []

    def begin(**options):
        jobs.append(Guarded(tmp_path, **options))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.monitor.close()


# Skipping


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_that_is_not_finite_leaves_no_trace(start, optimizer):
    job = start(optimizer=optimizer)
    for factor in (1.0, 1.0, math.nan, 1.0):
        job.train(factor)
        if factor != factor:
            assert job.hooks.skipped
            # Scripts look at gradients after the step.
            assert all(bool((parameter.grad == 0).all()) for parameter in job.model.parameters())
    before, bad, after = job.states[1:]
    assert_equal(bad, before)
    assert differs(after, bad)
    assert not job.hooks.skipped
    assert job.decisions == [(2, "skip")]
    assert "gradients are not finite" in job.monitor.decisions[0].reason
    job.monitor.close()
    assert [record.skipped for record in read_run(job.run_dir).timeline()] == [False, False, True, False]


def test_a_plain_module_keeps_its_weights_and_says_that_its_buffers_saw_the_step(start, capfd):
    job = start(model=small_model())
    job.train()
    before, weights = job.state, [name for name, _ in job.model.named_parameters()]
    job.train(math.nan)
    assert [name for name in weights if not torch.equal(job.state[name], before[name])] == []
    assert job.decisions == [(1, "skip")]
    assert "buffers could not be put back" in capfd.readouterr().err


def test_a_bad_micro_batch_takes_the_whole_step_with_it(start):
    job = start()
    job.train()
    before = job.state
    job.optimizer.zero_grad()
    with job.model.no_sync():
        job.backward(math.nan)
    job.backward()
    job.optimizer.step()
    assert_equal(job.state, before)
    assert job.decisions == [(1, "skip")]


def test_what_a_bad_step_has_in_its_closure_leaves_no_trace(start):
    job = start()
    factors = [1.0, math.nan, 1.0]

    def closure():
        job.optimizer.zero_grad()
        return job.backward(factors.pop(0))

    for _ in range(3):
        job.optimizer.step(closure)
        job.states.append(job.state)
    assert_equal(job.states[1], job.states[0])
    assert differs(job.states[2], job.states[1])
    assert job.decisions == [(1, "skip")]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_bad_step_that_the_script_drops_does_not_touch_the_next(start, set_to_none):
    job = start()
    job.train()
    job.backward(math.nan)
    job.optimizer.zero_grad(set_to_none=set_to_none)
    weight = job.model.module[0].weight.detach().clone()
    job.backward()
    job.optimizer.step()
    assert not torch.equal(job.model.module[0].weight, weight)
    assert job.model.module[0].weight.isfinite().all()
    before = job.state
    job.train()
    assert differs(job.state, before)
    assert job.decisions == [(1, "skip")]


def test_gradients_dropped_by_hand_are_heard_again(start):
    job = start()
    job.train()
    job.backward(math.nan)
    for parameter in job.model.parameters():
        parameter.grad = None
    before = job.state
    job.backward()
    job.optimizer.step()
    assert differs(job.state, before)


def test_parameters_beside_the_model_are_skipped_with_it(start):
    job, temperature = start(), nn.Parameter(torch.ones(1))
    job.optimizer.add_param_group({"params": [temperature]})
    temperature.grad = torch.ones(1)
    job.backward(math.nan)
    job.optimizer.step()
    assert temperature.item() == 1


def test_other_models_train_on(start):
    job, other = start(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    before = job.state
    job.backward(math.nan)
    other(torch.ones(1, 1)).sum().backward()
    weight = other.weight.item()
    optimizer.step()
    assert other.weight.item() != weight
    optimizer.zero_grad()
    job.optimizer.step()
    assert_equal({name: value for name, value in job.state.items() if name in before}, before)
    assert len(job.decisions) == 1


def test_what_a_loss_scaler_skips_is_left_to_it(start):
    job, scaler = start(), torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor in (1.0, math.inf, 1.0):
        job.optimizer.zero_grad()
        job.factor = factor
        scaler.scale(job.model(INPUTS).square().mean()).backward()
        scaler.step(job.optimizer)
        scaler.update()
        job.states.append(job.state)
    assert job.decisions == []
    assert job.hooks._guarded_state.scaler is scaler
    assert scaler.get_scale() == 4
    weights = [name for name, _ in job.model.named_parameters()]
    assert all(torch.equal(job.states[1][name], job.states[0][name]) for name in weights)


def test_a_dry_run_only_tells(start):
    job = start(guard=unisono.guard(dry_run=True))
    job.train()
    before = job.state
    job.train(math.nan)
    assert differs(job.state, before)
    assert [decision.dry for decision in job.monitor.decisions] == [True]


def test_who_is_rejected_by_steering_does_not_count(start):
    class Rejects:
        rejected = True

    job = start()
    job.hooks._steering = Rejects()
    job.train()
    assert job.hooks.own.counts is False
    Rejects.rejected = False
    job.train()
    assert job.hooks.own.counts is True


def test_statistics_seen_without_gradients_are_not_put_back(start):
    job = start()
    job.train()
    with torch.no_grad():
        job.model(INPUTS + 5)
    before = job.state
    job.train(math.nan)
    assert_equal(job.state, before)


def test_forked_children_do_not_meet(start):
    job = start()
    job.hooks._pid += 1
    job.train(math.nan)
    assert job.decisions == []
    job.hooks._pid -= 1


# Going back


def going_back(start, **options):
    kept = unisono.Checkpoints(every=5, quiet=2)
    return start(guard=unisono.guard(rollback=True, checkpoints=kept, **options))


def test_after_an_explosion_all_is_as_in_the_newest_healthy_checkpoint(start):
    job = going_back(start)
    for _ in range(28):
        job.train()
    job.train(1e9)
    (decision,) = job.monitor.decisions
    assert (decision.step, decision.action) == (28, "roll-back, skip")
    # Taken every five steps; two quiet ones after that of step 25 were seen.
    assert_equal(job.state, job.states[25])
    assert not job.hooks._executor.going_back
    replayed = [(job.train(), job.state)[1] for _ in range(2)]
    assert_equal(replayed[0], job.states[26])
    assert_equal(replayed[1], job.states[27])


def test_without_the_end_of_the_step_it_goes_back_before_the_next_one(start):
    job = going_back(start)
    for _ in range(28):
        job.train()
    job.optimizer.zero_grad()
    job.backward(1e9)
    job.optimizer.zero_grad()
    assert job.hooks._executor.going_back
    weights = {name: value.clone() for name, value in job.states[25].items()}
    job.model.eval()
    job.model(INPUTS)
    assert_equal(job.state, weights)


def test_where_the_script_ends_steps_its_word_counts(start):
    job, scheduled = going_back(start), []
    for step in range(29):
        job.train(1e9 if step == 28 else 1.0)
        if step < 28:
            job.optimizer.param_groups[0]["lr"] *= 0.99
            scheduled.append(job.optimizer.param_groups[0]["lr"])
        job.monitor.step()
    assert_equal(job.state, job.states[25])
    assert job.optimizer.param_groups[0]["lr"] == scheduled[25]


def test_checkpoints_of_other_optimizers_are_not_gone_back_to(start):
    job = going_back(start)
    for _ in range(12):
        job.train()
    store = job.hooks._executor.store
    assert store.held()
    other = torch.optim.SGD(job.model.parameters(), 0.01)
    job.backward()
    other.step()
    assert store.held() == ()


def test_an_optimizer_met_in_its_first_step_is_looked_after(start):
    job = start(given=False)
    assert job.hooks._guarded_state.optimizers == []
    job.train()
    job.train()
    assert job.hooks._guarded_state.optimizers == [job.optimizer]
    before = job.state
    job.train(math.nan)
    assert_equal(job.state, before)


def test_only_checkpoints_on_disk_outlast_a_restart(start):
    with pytest.raises(ValueError, match="Found a guard without them"):
        going_back(start).monitor.restore()


def test_a_restart_goes_on_from_the_disk(start):
    kept = unisono.Checkpoints(every=5, quiet=2, where="disk")
    guard = unisono.guard(rollback=True, checkpoints=kept)
    first = start(guard=guard)
    assert first.monitor.restore() is None
    for _ in range(14):
        first.train()
        assert first.hooks._executor.store.wait(10)
    first.monitor.close()
    second = start(guard=guard)
    assert second.monitor.restore() == 10
    assert_equal(second.state, first.states[10])
    assert second.monitor._tracker.step == 11


# Refused


def test_lbfgs_is_refused_before_and_while_training(tmp_path, start):
    model = DistributedDataParallel(small_model())
    lbfgs = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match="Found LBFGS"):
        unisono.attach(model, lbfgs, guard=unisono.guard(), run_dir=tmp_path / "refused")
    job = start(given=False)
    with pytest.raises(ValueError, match="Found LBFGS"):
        torch.optim.LBFGS(job.model.parameters()).step(job.backward)


def test_an_optimizer_that_steps_inside_backward_is_refused(start):
    job = start()
    job.model.module[0].weight.register_post_accumulate_grad_hook(lambda parameter: job.optimizer.step())
    with pytest.raises(RuntimeError, match="Found an optimizer that steps before, in a gradient hook"):
        job.backward()


class Twice(torch.optim.SGD):
    """Evaluates the loss twice a step."""

    def step(self, closure):
        closure()
        return super().step(closure)


def test_a_second_synchronised_pass_inside_a_step_is_refused(start):
    job = start()
    optimizer = Twice(job.model.parameters(), 0.01)
    with pytest.raises(RuntimeError, match="Found a second synchronised backward pass inside its `step`"):
        optimizer.step(job.backward)


def test_one_pass_inside_each_step_is_fine(start):
    job = start()
    for _ in range(3):
        job.optimizer.step(job.backward)
    assert job.decisions == []


def test_join_is_refused(start):
    job = start()
    job.model._join_config = job.model._join_config._replace(enable=True)
    with pytest.raises(RuntimeError, match="Found `join`"):
        job.backward()
    job.model._join_config = job.model._join_config._replace(enable=False)


def test_a_step_without_an_optimizer_is_refused(start):
    job = start(given=False)
    job.monitor.step()  # nothing has happened yet
    job.backward()
    with pytest.raises(RuntimeError, match="Found a step without one"):
        job.monitor.step()


def test_a_model_is_guarded_once_and_who_is_refused_does_not_listen(start, tmp_path):
    job = start()
    listeners = torch_patches._patched.listeners
    with pytest.raises(ValueError, match="Found one that is guarded already"):
        unisono.attach(job.model, guard=unisono.guard(), run_dir=tmp_path / "again")
    assert torch_patches._patched.listeners == listeners


def test_a_models_own_error_in_backward_begins_no_round(start):
    job = start()
    job.train()
    with pytest.raises(RuntimeError, match="implicitly created only for scalar"):
        job.model.module(INPUTS).backward()
    assert not job.hooks._in_backward
    job.train()
    assert job.decisions == []


# Letting go


def test_a_model_that_is_gone_takes_its_guard_along(start):
    job = start()
    job.train()
    hooks = job.hooks
    for handle in job._watched:
        handle.remove()
    job.model = job.optimizer = job._watched = None
    gc.collect()
    assert hooks.released
    assert job.monitor.closed
    assert torch_patches._patched.listeners == ()
    assert hooks._guarded_state.parameters == []
    assert hooks._executor.store is None


def test_after_closing_the_guard_ends_at_the_next_pass(start, capfd):
    job = start()
    job.train()
    job.monitor.close()
    assert job.hooks.leaving
    assert not job.hooks.released
    job.train(math.nan)
    assert job.hooks.released
    assert "the guard has ended" in capfd.readouterr().err
    assert guard_hooks_of(job.model) is None
    assert not any(parameter._post_accumulate_grad_hooks for parameter in job.model.parameters())


def test_a_model_can_be_guarded_again_after_closing(start):
    first = start()
    first.train()
    first.monitor.close()
    second = start(model=first.model)
    assert first.hooks.released
    second.train(math.nan)
    assert [action for _, action in second.decisions] == ["skip"]


def test_rows_of_the_user_are_asked(start):
    called = []
    rows = [
        Row("third", lambda now: "step 2" if now.step == 2 else None, lambda decision: called.append(decision.step))
    ]
    job = start(guard=unisono.guard(rows=rows))
    for _ in range(4):
        job.train()
    assert called == [2]
