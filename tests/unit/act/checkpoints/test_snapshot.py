"""A worker goes back to what it was, to the bit, or is left as it is."""

import copy
import io
import random

import numpy as np
import pytest
import torch
from torch import nn

from unisono.act.checkpoints import CheckpointError, Snapshot, Subject, capture, put_back


def two_groups(parameters):
    first, *rest = parameters
    return torch.optim.Adam([{"params": [first], "lr": 0.1}, {"params": rest, "betas": (0.5, 0.6)}], lr=0.01)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw with lr as a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "two groups": two_groups,
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("through_a_file", [False, True], ids=["in memory", "through a file"])
def test_training_repeats_itself_to_the_bit(worker, make, through_a_file):
    one = worker(make)
    one.train(3)
    snapshot = capture(one.subject, 3)
    if through_a_file:
        snapshot = Snapshot(3, reread(snapshot.replica), reread(snapshot.own))
    taken = one.everything()
    results = []
    for _ in range(2):
        one.train(4)
        results.append(one.everything())
        put_back(one.subject, snapshot)
        assert one.everything() == taken
    assert results[0] == results[1] != taken


def reread(value):
    content = io.BytesIO()
    torch.save(value, content)
    content.seek(0)
    return torch.load(content, weights_only=True)


def test_a_new_process_goes_on_where_the_old_one_was(worker):
    one, other = worker(), worker(seed=5)
    one.train(3)
    snapshot = capture(one.subject, 3)
    one.train(4)
    put_back(other.subject, snapshot)
    other.train(4)
    assert other.everything() == one.everything()


def test_an_optimizer_that_remembers_in_another_precision_keeps_it(worker):
    """torch's own loading would round what is remembered to the parameter's type."""
    one = worker(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), dtype=torch.bfloat16)
    one.train(1)
    state = one.optimizer.state[next(one.model.parameters())]
    state["momentum_buffer"] = torch.full(state["momentum_buffer"].shape, 1 / 3)
    snapshot = capture(one.subject, 1)
    state["momentum_buffer"].zero_()
    put_back(one.subject, snapshot)
    back = one.optimizer.state[next(one.model.parameters())]["momentum_buffer"]
    assert (back.dtype, back[0, 0].item()) == (torch.float32, torch.tensor(1 / 3).item())


def test_a_capture_shares_nothing_with_what_is_trained(worker):
    one = worker()
    one.train(2)
    snapshot = capture(one.subject, 2)
    before = copy.deepcopy(snapshot)
    one.train(3)
    assert alike(snapshot, before)
    put_back(one.subject, snapshot)
    one.train(3)
    assert alike(snapshot, before)


def alike(one, other):
    return repr(listed([one.replica, one.own])) == repr(listed([other.replica, other.own]))


def listed(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: listed(part) for key, part in value.items()}
    return [listed(part) for part in value] if isinstance(value, list) else value


def test_what_scripts_hold_on_to_stays_the_same_object(worker):
    one = worker(OPTIMIZERS["adamw with lr as a tensor"])
    one.train(2)
    for parameter in one.model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    held = [*one.model.parameters(), *one.model.buffers(), one.optimizer.param_groups, *one.optimizer.param_groups]
    held.append(one.optimizer.param_groups[0]["lr"])
    snapshot = capture(one.subject, 2)
    one.optimizer.param_groups[0]["lr"].fill_(3.0)
    put_back(one.subject, snapshot)
    now = [*one.model.parameters(), *one.model.buffers(), one.optimizer.param_groups, *one.optimizer.param_groups]
    now.append(one.optimizer.param_groups[0]["lr"])
    assert [id(part) for part in now] == [id(part) for part in held]
    assert now[-1].item() == pytest.approx(0.001)
    assert all(bool((parameter.grad == 7.0).all()) for parameter in one.model.parameters())


def test_all_random_streams_are_put_back(worker):
    one = worker()
    random.gauss(0, 1)
    snapshot = capture(one.subject, 1)
    draws = [(random.gauss(0, 1), random.random(), np.random.normal(), torch.rand(1).item()) for _ in range(3)]
    put_back(one.subject, snapshot)
    assert [(random.gauss(0, 1), random.random(), np.random.normal(), torch.rand(1).item()) for _ in range(3)] == draws


def test_a_gradscaler_is_put_back(worker):
    one = worker()
    one.subject.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    snapshot = capture(one.subject, 1)
    one.subject.scaler.load_state_dict({**one.subject.scaler.state_dict(), "scale": 2.0, "_growth_tracker": 5})
    put_back(one.subject, snapshot)
    assert (one.subject.scaler.get_scale(), one.subject.scaler.state_dict()["_growth_tracker"]) == (64.0, 0)


class Odd:
    def __init__(self, value, fails=False):
        self.value, self.fails = value, fails

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        if self.fails:
            raise KeyError("no")
        self.value = state["value"]


@pytest.mark.parametrize(
    "value",
    [np.float64(1.0), np.arange(3), random.Random(1), pytest],
    ids=["numpy number", "array", "stream", "module"],
)
def test_a_state_that_could_not_be_read_back_is_refused_when_it_is_taken(worker, value):
    one = worker()
    one.subject.states = [*one.subject.states, Odd(value)]
    with pytest.raises(CheckpointError, match=r"state object 2 \(`Odd`\) should .* Let its `state_dict`"):
        capture(one.subject, 1)


def test_an_object_without_a_state_is_refused(worker):
    one = worker()
    one.subject.states = [object()]
    with pytest.raises(CheckpointError, match=r"`state_dict` and `load_state_dict`. Found state object 0 \(`object`\)"):
        capture(one.subject, 1)


def change_shape(snapshot):
    snapshot.replica["parameters"]["0.weight"] = torch.zeros(6, 5)


def change_type(snapshot):
    snapshot.replica["parameters"]["3.weight"] = snapshot.replica["parameters"]["3.weight"].double()


def rename(snapshot):
    snapshot.replica["parameters"]["0.wait"] = snapshot.replica["parameters"].pop("0.weight")


def change_buffer(snapshot):
    snapshot.own["buffers"]["1.running_mean"] = torch.zeros(7)


def lose_optimizer(snapshot):
    snapshot.replica["optimizers"] = {}


def other_optimizer(snapshot):
    snapshot.replica["optimizers"][0]["class"] = "SGD"


def regroup(snapshot):
    snapshot.replica["optimizers"][0]["shapes"] *= 2


def lose_state(snapshot):
    snapshot.own["states"].pop()


def gain_scaler(snapshot):
    snapshot.replica["scaler"] = {"scale": 1.0}


def spoil_stream(snapshot):
    snapshot.own["random"]["python"][1].pop()


def other_step(snapshot):
    snapshot.own["step"] = 9


def other_form(snapshot):
    snapshot.replica["form"] = 99


def empty(snapshot):
    snapshot.replica, snapshot.own = {}, {}


SPOILERS = [
    change_shape, change_type, rename, change_buffer, lose_optimizer, other_optimizer, regroup, lose_state, gain_scaler,
    spoil_stream, other_step, other_form, empty,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILERS)
def test_what_does_not_fit_changes_nothing(worker, spoil):
    one = worker()
    one.train(2)
    snapshot = capture(one.subject, 2)
    one.train(2)
    spoil(snapshot)
    assert_refused_without_trace(one, snapshot, "should")


def assert_refused_without_trace(one, snapshot, match):
    before, stream = one.everything(), torch.get_rng_state()
    with pytest.raises(CheckpointError, match=match):
        put_back(one.subject, snapshot)
    assert one.everything() == before
    assert torch.equal(torch.get_rng_state(), stream)


def test_another_model_is_refused_and_left_alone(worker):
    one, wider = worker(), worker(width=7)
    one.train(1)
    wider.train(2)
    message = r"parameter `0.weight` with shape \[6, 4\] and float32 in it, and with shape \[7, 4\]"
    assert_refused_without_trace(wider, capture(one.subject, 1), message)


def test_a_state_object_that_refuses_halfway_undoes_all(worker):
    one = worker()
    one.train(2)
    last = Odd(1)
    one.subject.states = [*one.subject.states, last]
    snapshot = capture(one.subject, 2)
    one.train(2)
    last.fails = True
    one.subject.states = [*one.subject.states[:2], FailsOnce(last)]
    assert_refused_without_trace(one, snapshot, r"state object 2 \(`FailsOnce`\) should be loadable.*KeyError")


class FailsOnce:
    """It accepts its own old state again."""

    def __init__(self, inner):
        self.inner = inner

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        try:
            self.inner.load_state_dict(state)
        finally:
            self.inner.fails = False


def test_a_cache_that_has_grown_is_left_alone(worker):
    one = worker()
    snapshot = capture(one.subject, 1)
    one.model.passing = torch.full((9,), 4.0)
    put_back(one.subject, snapshot)
    assert one.model.passing.tolist() == [4.0] * 9


def test_an_expanded_buffer_that_is_unchanged_is_no_hindrance(worker):
    one = worker()
    one.model.register_buffer("positions", torch.zeros(1, 3).expand(5, 3))
    snapshot = capture(one.subject, 1)
    put_back(one.subject, snapshot)
    one.model.positions[0, 0] = 1.0
    with pytest.raises(CheckpointError, match="Found `positions`, an expanded view"):
        put_back(one.subject, snapshot)


class Noting(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.note = "first"

    def get_extra_state(self):
        return {"note": self.note}

    def set_extra_state(self, state):
        self.note = state["note"]


def test_extra_state_of_modules_is_put_back():
    module = Noting()
    subject = Subject(module, [])
    snapshot = capture(subject, 1)
    module.note = "second"
    put_back(subject, snapshot)
    assert module.note == "first"


def test_tied_parameters_are_kept_once():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    snapshot = capture(Subject(module, []), 1)
    assert sorted(snapshot.replica["parameters"]) == ["0.bias", "0.weight", "1.bias"]
    put_back(Subject(module, []), snapshot)
    assert module[1].weight is module[0].weight


def test_a_share_of_a_sharded_optimizer_is_this_workers_own(tmp_path):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Linear(3, 3)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        subject = Subject(model, [optimizer])
        step_of(model, optimizer)
        snapshot = capture(subject, 1)
        assert (list(snapshot.replica["optimizers"]), list(snapshot.own["optimizers"])) == ([], [0])
        results = []
        for _ in range(2):
            optimizer.param_groups[0]["lr"] *= 0.5
            step_of(model, optimizer)
            step_of(model, optimizer)
            results.append((model.weight.tolist(), optimizer.param_groups[0]["lr"]))
            put_back(subject, snapshot)
        assert results[0] == results[1]
        assert optimizer.param_groups[0]["lr"] == 0.1
    finally:
        torch.distributed.destroy_process_group()


def step_of(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 3)).square().sum().backward()
    optimizer.step()


def test_workers_that_divide_an_optimizers_memory_keep_their_own(worker):
    one = worker(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    one.train(1)
    del one.optimizer.state[next(one.model.parameters())]
    snapshot = capture(one.subject, 1)
    assert (list(snapshot.replica["optimizers"]), list(snapshot.own["optimizers"])) == ([], [0])
    put_back(one.subject, snapshot)
