"""Steering in one process: DDP's own gradient, and workers invented beside it. W = workers, N = numbers of a bucket."""

import gc
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from group_of_one import group_of_one
from unisono.act.steering import setup
from unisono.act.steering.exact_route import ExactRoute
from unisono.act.steering.setup import CommHookState, SteeringOptions, steer, steering_of, unisono_steering
from unisono.act.steering.sketch_route import SketchRoute
from unisono.act.steering.steering import Steering
from unisono.act.weightings.spec import VARIABLE
from unisono.act.weightings.weighting import Weighting
from unisono.exchange.collectives import Slices
from unisono.listen import torch_patches
from unisono.listen.models.ddp import DDPWrapper
from unisono.listen.models.wrapper import PlainModule
from unisono.weightings import AgreementFilter, Mean, Preconditioned

GRAMS = ["exact", "sketch"]


class Done:
    def wait(self):
        """Nothing is on its way."""


class InventedWorkers:
    """In place of collectives: the gradient of each worker is a multiple of ours, who is the first."""

    rank, is_first = 0, True

    def __init__(self, factor_W):
        self.factor_W, self.world, self.weight_W = factor_W, len(factor_W), []

    def swap(self, vector_N):
        return Slices(Done(), torch.stack([factor * vector_N for factor in self.factor_W]))

    def gram(self, slices, square):
        gram_WW = sum(slice_WS.double() @ slice_WS.double().T for slice_WS in slices)
        square_W = [factor**2 * float(square) for factor in self.factor_W]
        return gram_WW, torch.tensor(square_W, dtype=torch.float64)

    def verdict(self, decide):
        self.weight_W = list(decide())
        return self.weight_W

    def add_up(self, buffer_N, weight):
        assert weight == self.weight_W[self.rank]
        pairs = zip(self.weight_W, self.factor_W, strict=True)
        buffer_N.mul_(sum(weight * factor for weight, factor in pairs if weight))
        return Done()

    def put_together(self, buffer_N, slice_S):
        buffer_N.copy_(slice_S)


class Says(Weighting):
    """These weights, in turn, the last ones for ever; remembers what it was asked."""

    def __init__(self, *weights):
        self.weights, self.grams, self.steps = list(weights), [], []

    def __deepcopy__(self, memo):
        return self

    def at(self, step):
        self.steps.append(step)
        return self

    def __call__(self, gram_WW):
        self.grams.append(gram_WW)
        return self.weights.pop(0) if len(self.weights) > 1 else self.weights[0]


@pytest.fixture(scope="module", autouse=True)
def group():
    with group_of_one():
        yield


@pytest.fixture(autouse=True)
def nobody_listens():
    """Let go of by hand: collecting all garbage after each test would take longer than the tests."""
    yield
    for listener in torch_patches._patched.listeners:
        listener.release()
    assert torch_patches._patched.listeners == ()


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


INPUTS = torch.arange(24.0).reshape(6, 4) / 10


class Steered:
    """A wrapped model, steered; `train` is one step."""

    def __init__(self, weighting, factor_W=(1.0, 1.0, 1.0), gram="exact", scope="model", forget=False, **options):
        buckets = {"bucket_cap_mb": 1e-6} if scope == "bucket" else {}
        self.model = DistributedDataParallel(small_model(), **buckets)
        make = options.get("optimizer", lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9))
        self.optimizer = make(self.model.parameters())
        self.complaints, self.workers = [], InventedWorkers(factor_W)
        named = [(name, parameter) for name, parameter in self.model.module.named_parameters()]
        damping = options.get("damping")
        route = ExactRoute(self.workers) if gram == "exact" else SketchRoute(self.workers, named, 1, damping)
        first_step, per_bucket = options.get("first_step", 0), scope == "bucket"
        self.steering = Steering(
            *(self.model, self.workers, route, weighting, ["by hand"], per_bucket, forget, first_step),
            self.complaints.append,
        )
        self.model.register_comm_hook(CommHookState(self.steering), unisono_steering)
        self.steering.begin()

    def backward(self):
        self.model(INPUTS).square().sum().backward()

    def train(self):
        self.optimizer.zero_grad()
        self.backward()
        gradients = self.gradients
        self.optimizer.step()
        return gradients

    @property
    def gradients(self):
        return [parameter.grad.clone() for parameter in self.model.parameters()]

    @property
    def weights(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    @property
    def memory(self):
        return [state["momentum_buffer"].clone() for state in self.optimizer.state.values()]


def own_gradients(model):
    """As without steering, and without a trace of it."""
    twin = small_model()
    twin.load_state_dict(model.module.state_dict())
    twin(INPUTS).square().sum().backward()
    return [parameter.grad for parameter in twin.parameters()]


def assert_same(these, those, factor=1.0):
    for one, other in zip(these, those, strict=True):
        assert torch.allclose(one, factor * other, rtol=1e-5, atol=1e-5), (one, other)


def assert_equal(these, those):
    assert all(torch.equal(one, other) for one, other in zip(these, those, strict=True))


# What is decided, and what becomes of it


@pytest.mark.parametrize("gram", GRAMS)
def test_the_weighting_is_asked_with_the_gram_matrix_of_all_gradients(gram):
    weighting, factor_W = Says([1, 0, 0]), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    job = Steered(weighting, factor_W.tolist(), gram)
    square = sum(float(gradient.double().square().sum()) for gradient in own_gradients(job.model))
    job.train()
    (gram_WW,) = weighting.grams
    assert torch.allclose(gram_WW, square * factor_W.outer(factor_W), rtol=1e-4)


@pytest.mark.parametrize("gram", GRAMS)
@pytest.mark.parametrize("scope", ["model", "bucket"])
def test_gradients_are_the_weighted_sum(gram, scope):
    job = Steered(Says([0.5, 0.25, 0.0]), (1.0, -1.0, 7.0), gram, scope)
    job.train()  # after it DDP makes its buckets as small as asked for
    expected = own_gradients(job.model)
    assert_same(job.train(), expected, factor=0.25)
    assert not job.steering.skipped


def test_the_mean_is_what_all_reduce_would_have_left():
    job = Steered(Mean(), (1.0, 2.0, 3.0))
    expected = own_gradients(job.model)
    assert_same(job.train(), expected, factor=2.0)


def test_what_was_decided_is_told_once():
    job = Steered(Says([0.5, 0.5, 0.0]), (1.0, 1.0, -1.0))
    job.train()
    steered = job.steering.take()
    assert steered.weight_W == pytest.approx((0.5, 0.5, 0.0))
    assert steered.distance_W == pytest.approx((0.0, 0.0, 2.0), abs=1e-6)
    assert job.steering.take() is None


def test_others_than_the_first_tell_nothing():
    job = Steered(Says([1.0, 1.0]), (1.0, 1.0))
    job.workers.is_first = False
    job.train()
    assert job.steering.take() is None


@pytest.mark.parametrize("gram", GRAMS)
@pytest.mark.parametrize("scope", ["model", "bucket"])
def test_without_any_weight_the_step_leaves_no_trace(gram, scope):
    weighting = Says(*[[1.0, 0.0]] * 2)
    job = Steered(weighting, (1.0, 1.0), gram, scope)
    job.train()
    job.train()
    weights, memory = job.weights, job.memory
    weighting.weights = [[0.0, 0.0]]
    gradients = job.train()
    assert job.steering.skipped
    assert all(bool((gradient == 0).all()) for gradient in gradients)
    assert_equal(job.weights, weights)
    assert_equal(job.memory, memory)
    # Scripts look at gradients after the step.
    assert all(bool((gradient == 0).all()) for gradient in job.gradients)
    assert job.steering.take().weight_W == (0.0, 0.0)
    assert not job.steering.skipped
    weighting.weights = [[1.0, 0.0]]
    job.train()
    assert not torch.equal(job.weights[0], weights[0])


def test_adam_counts_no_step_that_was_skipped():
    job = Steered(Says([1.0], [0.0]), (1.0,), optimizer=lambda parameters: torch.optim.AdamW(parameters, 0.1))
    job.train()
    before = job.weights
    job.train()
    assert {float(state["step"]) for state in job.optimizer.state.values()} == {1.0}
    assert_equal(job.weights, before)


@pytest.mark.parametrize("gram", GRAMS)
@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_a_worker_that_is_not_finite_counts_nothing(gram, spoilt):
    job = Steered(AgreementFilter(), (1.0, spoilt, 1.0), gram)
    expected = own_gradients(job.model)
    gradients = job.train()
    assert job.workers.weight_W == pytest.approx([0.5, 0.0, 0.5])
    assert_same(gradients, expected)


@pytest.mark.parametrize("scope", ["model", "bucket"])
def test_where_nobody_is_finite_a_loss_scaler_can_notice(scope):
    weighting = Says([1.0, 1.0])
    job = Steered(weighting, (1.0, 1.0), scope=scope)
    job.train()
    weights, asked = job.weights, len(weighting.grams)
    job.workers.factor_W = (math.nan, math.inf)
    gradients = job.train()
    assert all(bool(gradient.isnan().all()) for gradient in gradients)
    assert len(weighting.grams) == asked
    assert job.steering.skipped
    assert_equal(job.weights, weights)
    assert job.steering.take().weight_W == (0.0, 0.0)


def test_a_skip_with_somebody_not_finite_shows_as_nan_and_without_as_zeros():
    job = Steered(Says([0.0, 0.0]), (1.0, math.nan))
    assert all(bool(gradient.isnan().all()) for gradient in job.train())
    job.workers.factor_W = (1.0, 1.0)
    assert all(bool((gradient == 0).all()) for gradient in job.train())


def test_weights_that_cannot_be_are_an_error():
    for weights in ([1.0], [math.nan, 1.0]):
        job = Steered(Says(weights), (1.0, 1.0))
        with pytest.raises(ValueError, match="one finite weight for each of 2 gradients"):
            job.steering._weigh(torch.eye(2, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="Only the first worker should weigh"):
        job.steering._weigh(None)


# Scopes


def test_one_decision_for_the_model_or_one_per_bucket():
    whole, parts = Says([1.0]), Says([1.0])
    for weighting, scope in ((whole, "model"), (parts, "bucket")):
        job = Steered(weighting, (1.0,), scope=scope)
        job.train()  # after it DDP makes its buckets as small as asked for
        weighting.grams.clear()
        job.train()
    assert len(whole.grams) == 1
    assert len(parts.grams) > 1
    assert sum(float(gram_WW) for gram_WW in parts.grams) == pytest.approx(float(whole.grams[0]), rel=1e-5)
    assert job.steering.take().weight_W == (1.0,)


def test_a_bucket_without_weight_leaves_only_its_own_parameters_alone():
    weighting = Says([1.0])
    job = Steered(weighting, (1.0,), scope="bucket")
    job.train()
    job.train()  # DDP has sorted its buckets by now
    weights, weighting.weights = job.weights, [[0.0], [1.0]]
    job.train()
    kept = [torch.equal(one, other) for one, other in zip(job.weights, weights, strict=True)]
    assert any(kept)
    assert not all(kept)
    assert not job.steering.skipped
    assert 0 < job.steering.take().weight_W[0] < 1


def test_every_bucket_has_a_memory_of_its_own_and_a_function_is_what_it_is():
    @dataclass
    class Counts(Weighting):
        calls: int = 0

        def __call__(self, gram_WW):
            self.calls += 1
            return [1.0]

    weighting = Counts()
    job = Steered(weighting, (1.0,), scope="bucket")
    for _ in range(3):
        job.train()
    assert weighting.calls == 0
    assert max(own.calls for own in job.steering._weightings.values()) <= 3
    calls = []
    job = Steered(lambda gram_WW: calls.append(gram_WW) or [1.0], (1.0,))
    job.train()
    assert len(calls) == 1


def test_a_weighting_knows_the_step():
    weighting = Says([1.0])
    job = Steered(weighting, (1.0,), first_step=10)
    for _ in range(3):
        job.train()
    job.backward()
    job.steering.step_ended()
    job.steering.step_ended()
    job.train()
    assert weighting.steps == [10, 11, 12, 13, 14]


# Buffers of a rejected worker


@pytest.mark.parametrize(
    ("forget", "weights", "kept"), [(True, [0, 1], True), (True, [1, 0], False), (False, [0, 1], False)]
)
def test_a_rejected_workers_statistics_go_back(forget, weights, kept):
    weighting = Says([1.0, 0.0])
    job = Steered(weighting, (1.0, 1.0), forget=forget)
    job.train()
    before, weighting.weights = job.model.module[1].running_mean.clone(), [weights]
    job.train()
    assert torch.equal(job.model.module[1].running_mean, before) is kept
    assert not job.steering.rejected


def test_all_micro_batches_of_a_rejected_step_are_forgotten():
    weighting = Says([1.0, 0.0])
    job = Steered(weighting, (1.0, 1.0), forget=True)
    job.train()
    before, weighting.weights = job.model.module[1].running_mean.clone(), [[0.0, 1.0]]
    job.optimizer.zero_grad()
    with job.model.no_sync():
        job.backward()
    job.backward()
    assert torch.equal(job.model.module[1].running_mean, before)


def test_buffers_that_nobody_saw_before_are_told_of():
    job = Steered(Says([0.0, 1.0]), (1.0, 1.0), forget=True)
    job.steering.forward_begins = lambda model, inputs: None  # as where the model is compiled
    job.train()
    job.train()
    assert job.complaints == ["buffers of a compiled model cannot be put back: rejected batches stay in them"]


# What is refused, told and let go


class Bucket:
    def __init__(self, buffer_N, is_last=True):
        self._buffer_N, self._is_last = buffer_N, is_last

    def buffer(self):
        return self._buffer_N

    def parameters(self):
        return []

    def is_last(self):
        return self._is_last


def test_sparse_gradients_are_refused():
    job = Steered(Mean())
    with pytest.raises(RuntimeError, match="Found a sparse one"):
        job.steering.bucket_arrived(Bucket(torch.ones(3).to_sparse()))


def test_join_is_refused():
    job = Steered(Mean())
    job.model._join_config = job.model._join_config._replace(enable=True)
    with pytest.raises(RuntimeError, match="Found `join`"):
        job.steering.bucket_arrived(Bucket(torch.ones(3)))


def test_two_synchronised_passes_in_a_step_are_told_once():
    job = Steered(Says([1.0]), (1.0,))
    job.train()
    job.train()
    assert job.complaints == []
    for _ in range(2):
        job.optimizer.zero_grad()
        job.backward()
        job.backward()
        job.optimizer.step()
    assert len(job.complaints) == 1
    assert "Accumulate under `model.no_sync()`" in job.complaints[0]


def test_passes_whose_gradients_were_dropped_are_not_two_in_one_step():
    job = Steered(Says([1.0]), (1.0,))
    for _ in range(3):
        job.optimizer.zero_grad()
        job.backward()
    assert job.complaints == []


def test_gradients_accumulated_under_no_sync_are_steered_together():
    weighting = Says([0.5, 0.5])
    job = Steered(weighting, (1.0, 3.0))
    job.model.eval()
    with job.model.no_sync():
        job.backward()
    expected = job.gradients
    assert weighting.grams == []
    job.backward()
    assert len(weighting.grams) == 1
    assert_same(job.gradients, expected, factor=4.0)
    assert job.complaints == []


def test_a_pass_that_broke_off_is_forgotten():
    weighting = Says([1.0, 1.0])
    job = Steered(weighting, (1.0, 1.0))
    job.steering.bucket_arrived(Bucket(torch.full((5,), 1e6), is_last=False))
    expected = own_gradients(job.model)
    square = sum(float(gradient.double().square().sum()) for gradient in expected)
    assert_same(job.train(), expected, factor=2.0)
    assert weighting.grams[0][0, 0] == pytest.approx(square, rel=1e-5)
    assert job.steering.take().weight_W == (1.0, 1.0)


def test_an_optimizer_without_second_moments_is_told_of():
    job = Steered(Preconditioned(Mean()), gram="sketch", damping=0.1)
    for _ in range(3):
        job.train()
    assert job.complaints == ["the optimizer keeps no second moments: gradients are compared as they are"]


def test_another_models_optimizer_changes_nothing():
    weighting, other = Says([0.0]), nn.Linear(1, 1)
    job = Steered(weighting, (1.0,))
    job.backward()
    other(torch.ones(1, 1)).sum().backward()
    before = other.weight.detach().clone()
    torch.optim.SGD(other.parameters(), 0.1).step()
    assert not torch.equal(other.weight, before)
    before = job.weights
    job.optimizer.step()
    assert_equal(job.weights, before)
    assert job.steering._step == 1


def test_it_goes_with_its_model():
    job = Steered(Says([1.0]), (1.0,))
    job.train()
    steering = job.steering
    assert torch_patches._patched.listeners == (steering,)
    job.model = job.optimizer = None
    gc.collect()
    assert torch_patches._patched.listeners == ()


def test_in_words():
    def keep_all(gram_WW):
        return [1.0]

    assert str(Steered(keep_all, (1.0,)).steering) == "keep_all, by hand"
    assert str(Steered(Mean(), (1.0,)).steering) == "Mean(), by hand"


# Setting up, with the collectives of the group of one


@pytest.mark.parametrize("gram", GRAMS)
@pytest.mark.parametrize("scope", ["model", "bucket"])
def test_one_worker_with_the_mean_is_as_without_steering(gram, scope):
    model = DistributedDataParallel(small_model())
    expected = own_gradients(model)
    steering = setup._steering(model, [0], SteeringOptions(Mean(), gram, scope), 0)
    steering.begin()
    model(INPUTS).square().sum().backward()
    assert_same([parameter.grad for parameter in model.parameters()], expected)
    assert steering.take().weight_W == (1.0,)
    assert str(steering) == f"Mean(), {gram} gram, scope {scope}"
    assert steering_of(model) is steering


def test_a_slot_that_is_taken_is_refused():
    model = DistributedDataParallel(small_model())
    model.register_comm_hook(None, lambda state, bucket: bucket.buffer())
    with pytest.raises(ValueError, match="Found `<lambda>`"):
        setup._steering(model, [0], SteeringOptions(Mean()), 0)


def test_a_builtin_hook_in_the_slot_is_refused():
    model = DistributedDataParallel(small_model())
    model._register_builtin_comm_hook(torch.distributed.BuiltinCommHookType.ALLREDUCE)
    with pytest.raises(ValueError, match="Found one of torch's own"):
        setup._steering(model, [0], SteeringOptions(Mean()), 0)
    assert steering_of(model) is None


def test_another_hook_afterwards_is_refused():
    model = DistributedDataParallel(small_model())
    setup._steering(model, [0], SteeringOptions(Mean()), 0)
    with pytest.raises(RuntimeError, match="Found another one being registered"):
        model.register_comm_hook(None, unisono_steering)


class TwoWorkers(DDPWrapper):
    def ranks(self):
        return [0, 1]


def test_a_model_is_steered_once(monkeypatch, capfd):
    monkeypatch.delenv(VARIABLE, raising=False)
    model = DistributedDataParallel(small_model())
    setup._steering(model, [0], SteeringOptions(Mean()), 0)
    with pytest.raises(ValueError, match="Found one that is steered already"):
        steer(model, TwoWorkers(model), SteeringOptions(Mean()), 0)
    monkeypatch.setenv(VARIABLE, "mean")
    assert steer(model, TwoWorkers(model), SteeringOptions(AgreementFilter()), 0) is None
    assert "steered by Mean(), sketch gram, scope model already" in capfd.readouterr().err


def test_a_copy_of_a_steered_model_is_not_steered():
    state = CommHookState(object())
    copied, arguments = state.__reduce__()
    assert copied(*arguments).steering is None


def test_one_worker_and_plain_modules_have_nothing_to_steer(capfd):
    module = small_model()
    assert steer(module, PlainModule(module), SteeringOptions(Mean()), 0) is None
    assert "one worker only: nothing to weigh" in capfd.readouterr().err
    with pytest.raises(ValueError, match="Found Sequential"):
        steer(module, None, SteeringOptions(Mean()), 0)
