"""The training thread's part, in one process: which backward belongs to which step, and what is handed over."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from group_of_one import group_of_one
from unisono.common.console import Console
from unisono.common.schedule import every
from unisono.listen import torch_patches
from unisono.listen.evidence.collector import EvidenceCollector
from unisono.listen.evidence.weight_prints import WeightPrints
from unisono.listen.gradient_reader import GradientReader
from unisono.listen.listening_plan import ListeningPlan
from unisono.listen.messages import Steered
from unisono.listen.models.ddp import DDPWrapper
from unisono.listen.models.wrapper import PlainModule
from unisono.listen.step_tracker import StepTracker


@pytest.fixture(autouse=True, scope="module")
def group():
    with group_of_one():
        yield


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def norm_of(parameters):
    return math.sqrt(sum(float(one.grad.double().square().sum()) for one in parameters if one.grad is not None))


class Followed:
    """A model, its optimizer, and a tracker that hands its steps over to a list."""

    def __init__(self, model=None, interval=1, complain=None, share=None, make_optimizer=None, **options):
        self.model = model or small_model()
        self.optimizer = (make_optimizer or torch.optim.SGD)(self.model.parameters(), lr=0.01)
        is_wrapped = isinstance(self.model, DistributedDataParallel)
        wrapper = DDPWrapper(self.model) if is_wrapped else PlainModule(self.model)
        self.reader = GradientReader(wrapper.named_parameters())
        self.plan = ListeningPlan(every(interval), options.get("first_step", 0))
        self.handovers, self.complaints = [], []
        complain = complain or self.complaints.append
        prints = WeightPrints(self.reader.names, self.reader.parameters)
        self.evidence = EvidenceCollector(wrapper, prints, self.reader.device, self.plan, complain, wrapper.facts)
        submit = self.handovers.append
        self.tracker = StepTracker(wrapper, self.reader, self.evidence, share, self.plan, submit, complain, **options)
        torch_patches.connect(self.tracker)
        torch_patches.connect(self.evidence)

    def loss(self, value=1.0):
        return (self.model(torch.full((2, 4), float(value))) - 1).square().mean()

    def backward(self, value=1.0):
        loss = self.loss(value)
        loss.backward()
        return loss.item()

    def train(self, value=1.0):
        """One step; its loss and the norm of its gradient."""
        self.optimizer.zero_grad()
        loss = self.backward(value)
        norm = norm_of(self.model.parameters())
        self.optimizer.step()
        return loss, norm

    @property
    def signals(self):
        return [handover.signal() for handover in self.handovers]

    @property
    def steps(self):
        return [handover.step for handover in self.handovers]

    @property
    def skipped(self):
        return [handover.skipped for handover in self.handovers]

    @property
    def heard(self):
        return [handover.readout is not None for handover in self.handovers]

    @property
    def losses(self):
        return [signal.loss for signal in self.signals]

    @property
    def norms(self):
        return [math.sqrt(sum(signal.squared_norm_G)) for signal in self.signals]

    def disconnect(self):
        torch_patches.disconnect(self.evidence)
        torch_patches.disconnect(self.tracker)
        self.tracker.close()
        self.evidence.close()


@pytest.fixture
def follow():
    followed = []

    def start(*args, **options):
        followed.append(Followed(*args, **options))
        return followed[-1]

    yield start
    for one in followed:
        one.disconnect()
    assert torch_patches._patched.listeners == ()


# When a step ends


def test_the_optimizers_step_ends_a_step(follow):
    job = follow()
    trained = [job.train(value) for value in range(3)]
    assert job.steps == [0, 1, 2]
    assert job.skipped == [False] * 3
    assert job.losses == pytest.approx([loss for loss, _ in trained])
    assert job.norms == pytest.approx([norm for _, norm in trained])
    assert job.complaints == []


def test_steps_are_numbered_from_the_first(follow):
    job = follow(first_step=40)
    job.train()
    job.train()
    assert job.steps == [40, 41]
    assert [handover.window for handover in job.handovers] == [40, 40]


def test_without_a_backward_there_is_no_step(follow):
    job = follow()
    job.optimizer.step()
    job.tracker.step_ended()
    assert job.handovers == []


def test_the_script_may_say_that_a_step_is_over(follow):
    job = follow()
    for _ in range(2):
        job.model.zero_grad()
        job.backward()
        job.tracker.step_ended()
        job.tracker.step_ended()
    assert (job.steps, job.skipped) == ([0, 1], [False, False])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_dropped_without_a_step_are_a_skipped_step(follow, set_to_none):
    job = follow()
    job.backward(1.0)
    job.optimizer.zero_grad(set_to_none=set_to_none)
    assert job.handovers == []
    loss = job.backward(2.0)
    job.optimizer.step()
    assert (job.steps, job.skipped) == ([0, 1], [True, False])
    assert job.losses[1] == pytest.approx(loss)


def test_gradients_dropped_by_hand_are_a_skipped_step(follow):
    job = follow()
    job.backward()
    for parameter in job.model.parameters():
        parameter.grad = None
    job.backward()
    job.optimizer.step()
    assert job.skipped == [True, False]


def test_zeroed_gradients_of_others_drop_nothing(follow):
    job, other = follow(), nn.Linear(1, 1)
    job.backward()
    other.zero_grad()
    job.backward()
    job.optimizer.step()
    assert job.skipped == [False]


def test_a_scaler_that_meets_infinity_skips_a_step(follow):
    job, scaler = follow(), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    losses = []
    for _ in range(3):
        job.optimizer.zero_grad()
        loss = job.loss()
        losses.append(loss.item())
        scaler.scale(loss).backward()
        scaler.step(job.optimizer)
        scaler.update()
    assert job.skipped[0]
    assert not job.signals[0].finite
    assert job.losses == pytest.approx(losses)
    assert job.steps == [0, 1, 2]


def test_a_closure_is_one_step_with_its_last_loss(follow):
    job = follow(make_optimizer=lambda parameters, lr: torch.optim.LBFGS(parameters, lr, max_iter=4))
    losses = []

    def closure():
        job.optimizer.zero_grad()
        loss = job.loss()
        losses.append(loss.item())
        loss.backward()
        return loss

    job.optimizer.step(closure)
    job.optimizer.step(closure)
    assert (job.steps, job.skipped) == ([0, 1], [False, False])
    assert len(losses) > 2
    assert job.losses[1] == pytest.approx(losses[-1])


def test_two_optimizers_of_one_model_are_one_step(follow):
    job = follow()
    first, last = (torch.optim.SGD(job.model[index].parameters(), 0.01) for index in (0, 2))
    for _ in range(2):
        job.model.zero_grad()
        job.backward()
        first.step()
        last.step()
    assert (job.steps, job.skipped) == ([0, 1], [False, False])


class TwoSteps(torch.optim.SGD):
    """Keeps another one, which steps twice: the second time on a gradient of its own."""

    def step(self, closure):
        inner = torch.optim.SGD(self.param_groups[0]["params"], 0.01)
        inner.step()
        closure()
        inner.step()


def test_an_optimizer_inside_another_does_not_end_the_step(follow):
    job = follow(make_optimizer=TwoSteps)
    job.backward()
    job.optimizer.step(job.backward)
    assert (job.steps, job.skipped) == ([0], [False])


def test_a_step_that_raised_does_not_stay_open(follow):
    job = follow(make_optimizer=TwoSteps)

    def fail():
        raise ValueError("injected")

    job.backward()
    with pytest.raises(ValueError, match="injected"):
        job.optimizer.step(fail)
    assert job.handovers == []
    job.optimizer.step(lambda: None)
    assert job.steps == [0]


# Which backward belongs to a step


def test_accumulated_gradients_are_one_step_with_the_sum_of_losses(follow):
    job = follow()
    first = job.backward(1.0)
    norm = norm_of(job.model.parameters())
    second = job.backward(2.0)
    job.optimizer.step()
    assert job.losses == pytest.approx([first + second])
    # Each pass of a plain module is synchronised: later ones would add to what is the mean of all workers.
    assert job.norms == pytest.approx([norm])


def test_under_no_sync_the_last_pass_is_read_with_all_that_was_added_up(follow):
    job = follow(DistributedDataParallel(small_model()))
    for _ in range(2):
        job.optimizer.zero_grad()
        with job.model.no_sync():
            first = job.backward(1.0)
        second = job.backward(2.0)
        norm = norm_of(job.model.parameters())
        job.optimizer.step()
    assert job.steps == [0, 1]
    assert job.losses[-1] == pytest.approx(first + second)
    assert job.norms[-1] == pytest.approx(norm)
    assert job.handovers[-1].raw_evidence.reduced is not None


def test_a_step_without_synchronisation_is_not_read(follow):
    job = follow(DistributedDataParallel(small_model()))
    with job.model.no_sync():
        job.backward()
    job.optimizer.step()
    assert job.heard == [False]
    assert job.handovers[0].due
    assert job.signals[0].compute is None


def test_backward_of_another_model_is_none_of_ours(follow):
    job, other = follow(), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(other.parameters(), 0.01)
    for value in range(2):
        job.optimizer.zero_grad()
        loss = job.backward(value)
        other(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        job.optimizer.step()
    assert job.steps == [0, 1]
    assert job.losses[-1] == pytest.approx(loss)


def test_another_model_that_trains_through_ours_is_no_step(follow):
    job, generator = follow(), nn.Linear(4, 4)
    other = torch.optim.SGD(generator.parameters(), 0.01)
    losses = []
    for value in range(3):
        losses.append(job.train(value)[0])
        job.optimizer.zero_grad()
        job.model(generator(torch.ones(2, 4))).mean().backward()
        other.step()
    assert job.skipped == [False] * 3
    assert job.losses == pytest.approx(losses)


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("injected")


def test_a_backward_that_fails_counts_for_nothing(follow):
    job = follow()
    for _ in range(70):  # as many as there are buffers, and some more
        hidden = Breaks.apply(job.model[0](torch.ones(2, 4)))
        with pytest.raises(ValueError, match="injected"):
            job.model[2](hidden.relu()).mean().backward()
    loss, norm = job.train()
    assert job.steps == [0]
    assert (job.losses, job.norms) == (pytest.approx([loss]), pytest.approx([norm]))


class Checkpointed(nn.Module):
    """One layer, used in as many checkpointed segments as asked for."""

    def __init__(self, times):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layer, self.times = nn.Linear(4, 4), nn.Linear(4, 4), times

    def forward(self, inputs):
        hidden = self.first(inputs)
        for _ in range(self.times):
            hidden = checkpoint(self.layer, hidden, use_reentrant=True)
        return hidden


def test_reentrant_checkpointing_is_one_backward(follow):
    job = follow(Checkpointed(1))
    trained = [job.train(value) for value in (1, 2)]
    assert job.steps == [0, 1]
    assert job.losses == pytest.approx([loss for loss, _ in trained])
    assert job.norms == pytest.approx([norm for _, norm in trained])


def test_a_gradient_that_arrives_twice_is_read_when_it_is_complete(follow):
    job = follow(Checkpointed(2))
    trained = [job.train(value) for value in (1, 2, 3)]
    # How often it arrives is learned from the first pass, whose reading is given up.
    assert job.heard == [False, True, True]
    assert job.norms[1:] == pytest.approx([norm for _, norm in trained[1:]])


class Towers(nn.Module):
    """Each input goes through one of two towers, so that whole parts get no gradient."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, inputs, left):
        return (self.left if left else self.right)(inputs)


def test_a_step_that_no_sentry_saw_is_a_step_and_the_next_ones_are_seen(follow):
    job = follow(Towers(), interval=100)
    for left in (True, False, False, True):
        job.optimizer.zero_grad()
        job.model(torch.ones(2, 4), left).square().mean().backward()
        job.optimizer.step()
    assert job.steps == [0, 1, 2, 3]
    assert [loss is None for loss in job.losses] == [False, True, False, False]


# What is handed over


def test_only_due_steps_are_read(follow):
    job = follow(interval=3)
    for _ in range(7):
        job.train()
    due = [True, False, False, True, False, False, True]
    assert job.heard == due
    assert [handover.due for handover in job.handovers] == due
    assert [signal.squared_norm_G == () for signal in job.signals] == [not one for one in due]
    assert all(loss is not None for loss in job.losses)


def hooks_on(model):
    return sum(len(parameter._post_accumulate_grad_hooks or ()) for parameter in model.parameters())


def test_between_readings_only_the_sentries_listen(follow):
    rarely, often = follow(interval=3), follow()
    for _ in range(4):
        rarely.train()
        often.train()
    assert hooks_on(rarely.model) == 2
    assert hooks_on(often.model) == 4


@pytest.mark.parametrize("interval", [1, 100])
@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_what_is_not_finite_shows_whether_it_is_read_or_not(follow, interval, spoilt):
    job = follow(interval=interval)
    job.train()
    job.optimizer.zero_grad()
    # The loss itself is finite.
    (job.model(torch.ones(2, 4)) * 1.0).backward(torch.full((2, 1), spoilt))
    job.optimizer.step()
    assert [signal.finite for signal in job.signals] == [True, False]
    assert job.signals[1].nonfinite == (4 if interval == 1 else 0)


def test_a_loss_that_is_not_finite_shows(follow):
    job = follow(interval=100)
    job.train()
    job.backward()
    job.tracker.record_loss(math.nan)
    job.optimizer.step()
    assert [signal.finite for signal in job.signals] == [True, False]


def test_the_loss_scale_is_taken_out_of_loss_and_norms(follow):
    job, scaler = follow(share=[0, 1]), torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = job.loss()
    scaler.scale(loss).backward()
    norm = norm_of(job.model.parameters()) / 1024
    share = norm_of(job.model[0].parameters()) / 1024
    scaler.step(job.optimizer)
    (handover,) = job.handovers
    assert handover.scale == 1024
    assert job.losses == pytest.approx([loss.item()])
    assert job.norms == pytest.approx([norm])
    assert handover.signal().reduced_share == pytest.approx(share**2)
    job.train()
    assert job.handovers[1].scale is None


def test_the_norm_before_clipping_is_handed_over(follow):
    job, other = follow(), nn.Linear(1, 1)
    other(torch.ones(1, 1)).sum().backward()
    job.backward()
    norm = norm_of(job.model.parameters())
    nn.utils.clip_grad_norm_(job.model.parameters(), 1e-3)
    nn.utils.clip_grad_norm_(other.parameters(), 1e-3)
    job.optimizer.step()
    job.train()
    assert [signal.clip_norm for signal in job.signals] == [pytest.approx(norm), None]


def test_a_recorded_loss_wins_and_several_are_averaged(follow):
    job = follow()
    job.tracker.record_loss(torch.tensor([1.0, 3.0]))
    job.tracker.record_loss(5.0)
    job.train()
    loss, _ = job.train()
    assert job.losses == pytest.approx([3.5, loss])


def test_the_share_of_the_reduced_gradient_belongs_to_one_synchronised_pass(follow):
    job = follow(share=[1, 2])
    job.backward()
    square = norm_of([job.model[0].bias, job.model[2].weight]) ** 2
    job.optimizer.step()
    job.optimizer.zero_grad()
    job.backward()
    job.backward()
    job.optimizer.step()
    assert [handover.reduced_share for handover in job.handovers] == [pytest.approx(square), None]


def test_marks_of_time_follow_each_other(follow):
    job = follow(interval=2)
    for _ in range(3):
        job.train()
    for before, after in zip(job.handovers, job.handovers[1:], strict=False):
        assert after.began == before.ended
    for signal in job.signals:
        assert 0 < signal.compute < signal.seconds
        assert 0 < signal.cost < signal.seconds
    spent = job.tracker.spent + job.evidence.spent
    assert sum(signal.cost for signal in job.signals) <= spent


class Decides:
    skipped = False

    def __init__(self):
        self.decided = [Steered((1.0,), (0.5,)), None]

    def take(self):
        return self.decided.pop(0)


def test_what_steering_decided_goes_with_its_step(follow):
    steering = Decides()
    job = follow(steering=steering)
    job.train()
    steering.skipped = True
    job.train()
    assert job.skipped == [False, True]
    assert [signal.weight_W for signal in job.signals] == [(1.0,), ()]
    assert job.signals[0].distance_W == (0.5,)


def test_a_step_that_the_guard_skips_is_skipped(follow):
    job, guard = follow(), Decides()
    job.tracker.guarded_by = guard
    job.train()
    guard.skipped = True
    job.train()
    assert job.skipped == [False, True]


def test_evidence_goes_with_its_step(follow):
    job = follow(DistributedDataParallel(small_model()))
    job.train()
    job.train()
    first, second = (handover.raw_evidence for handover in job.handovers)
    assert (first.passes, second.passes) == (1, 2)
    assert first.initial is not None
    assert second.initial is None
    assert first.weights != second.weights


def test_steps_for_which_no_buffer_is_left_are_due_and_not_heard(follow):
    job = follow()
    while all(job.heard):
        job.train()
    assert job.handovers[-1].due
    assert job.losses[-1] is not None
    job.handovers[0].discard()
    _, norm = job.train()
    assert job.norms[-1] == pytest.approx(norm)
    assert job.complaints == []


# Never into training


def test_an_error_of_the_reader_is_told_once_and_training_goes_on(follow, monkeypatch, capfd):
    def fail(self, index):
        raise ValueError("injected")

    with monkeypatch.context() as broken:
        broken.setattr(GradientReader, "hear", fail)
        job = follow(complain=Console().complain)
        before = job.model[0].weight.detach().clone()
        for _ in range(70):
            job.train()
    assert capfd.readouterr().err.count("listening failed (ValueError: injected); training is not affected") == 1
    assert not torch.equal(job.model[0].weight, before)
    assert (job.steps, any(job.heard)) == (list(range(70)), False)
    _, norm = job.train()
    assert job.norms[-1] == pytest.approx(norm)


def test_an_error_where_a_sentry_stands_is_told_too(follow, monkeypatch):
    job = follow()
    job.train()
    monkeypatch.setattr("unisono.listen.step_tracker.sum_of", lambda gradient: 1 / 0)
    job.train()
    assert job.complaints == [
        "listening failed (ZeroDivisionError: division by zero); training is not affected",
    ]
    assert job.steps == [0, 1]


def test_an_error_at_the_end_of_a_step_leaves_the_next_ones_alone(follow):
    job = follow()
    job.tracker._submit = lambda handover: 1 / 0
    job.train()
    job.tracker._submit = job.handovers.append
    job.train()
    assert (job.steps, len(job.complaints)) == ([1], 1)


def test_interrupts_pass_through(follow, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(GradientReader, "open", interrupt)
    job = follow()
    with pytest.raises(KeyboardInterrupt):
        job.backward()
    assert torch_patches._patched.depth == 0


def test_training_is_the_same_with_and_without(follow):
    def train(job):
        for value in range(5):
            job.train(value)
        return [parameter.detach().clone() for parameter in job.model.parameters()]

    followed, alone = follow(), follow()
    alone.disconnect()
    assert all(torch.equal(one, other) for one, other in zip(train(followed), train(alone), strict=True))
    assert (len(followed.handovers), len(alone.handovers)) == (5, 0)


def test_who_is_closed_hears_nothing_and_has_no_hooks_left(follow):
    job = follow()
    job.train()
    job.backward()
    job.tracker.close()
    job.optimizer.step()
    job.train()
    assert job.steps == [0]
    assert hooks_on(job.model) == 0


@pytest.mark.parametrize("where", ["forked", "captured"])
def test_forked_children_and_captured_graphs_are_not_heard(follow, where):
    job = follow()
    job.train()
    if where == "forked":
        job.tracker.pid += 1
    else:
        job.tracker.capturing = lambda: True
    job.train()
    job.tracker.record_loss(1.0)
    job.tracker.step_ended()
    assert (job.steps, job.tracker.step) == ([0], 1)


def test_a_closed_tracker_lets_the_model_go(follow):
    job = follow()
    job.train()
    job.backward()
    gone = [weakref.ref(parameter) for parameter in job.model.parameters()]
    job.disconnect()
    job.reader.release()
    job.handovers.clear()
    job.model = job.optimizer = None
    gc.collect()
    assert [reference() for reference in gone] == [None] * 4


def test_steps_on_parameters_in_the_place_of_the_wrapped_ones_are_not_synchronised(follow):
    followed = follow(DistributedDataParallel(small_model()))
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        followed.model.double().float()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    followed.optimizer = torch.optim.SGD(followed.model.parameters(), lr=0.01)
    for _ in range(3):
        followed.train()
    assert [handover.raw_evidence.syncs for handover in followed.handovers] == [0, 0, 0]
    assert followed.handovers[0].raw_evidence.facts["model"]["replaced"] == "yes"


def test_another_models_steps_are_none_of_ours(follow):
    followed = follow(DistributedDataParallel(small_model()))
    other = small_model()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
    for _ in range(3):
        other(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert followed.handovers == []
