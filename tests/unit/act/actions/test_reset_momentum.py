"""After a reset, the next step is bit by bit the first one of a new optimizer, for every optimizer of torch."""

import copy
from functools import partial

import pytest
import torch
from torch import nn, optim

from unisono.act.actions.reset_momentum import reset_momentum

WAYS = [{"foreach": False}, {"foreach": True}]
FUSED = [*WAYS, {"fused": True}]
SETTINGS = [
    *((optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, **way}) for way in FUSED),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (optim.SGD, {"lr": 0.1}),
    *((kind, {"lr": 0.1, "weight_decay": 0.1, **way}) for kind in (optim.Adam, optim.AdamW) for way in FUSED),
    (optim.Adam, {"lr": 0.1, "amsgrad": True}),
    (optim.Adam, {"lr": torch.tensor(0.1)}),
    *((kind, {"lr": 0.1, **way}) for kind in (optim.NAdam, optim.RAdam, optim.Adamax, optim.ASGD) for way in WAYS),
    *((kind, {"lr": 0.1, **way}) for kind in (optim.Rprop, optim.Adadelta) for way in WAYS),
    *((optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.2, "lr_decay": 0.1, **way}) for way in FUSED),
    *((optim.RMSprop, {"lr": 0.1, "momentum": 0.9, "centered": True, **way}) for way in WAYS),
    (optim.Adafactor, {"lr": 0.1}),
]
if hasattr(optim, "Muon"):
    SETTINGS.append((optim.Muon, {"lr": 0.1}))


def named(setting):
    kind, options = setting
    return f"{kind.__name__}-{'-'.join(map(str, options))}"


def matrices(dtype=torch.float32):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((4, 3), (3, 4), (5, 2))]


def groups(parameters):
    return [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.05}]


def step(optimizer, parameters, seed, skipped=()):
    generator = torch.Generator().manual_seed(seed)
    for place, parameter in enumerate(parameters):
        gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        parameter.grad = None if place in skipped else gradient
    optimizer.step()


def assert_first_step_again(optimizer, parameters, build):
    twins = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    new = build(twins)
    for seed in (100, 101):
        step(optimizer, parameters, seed)
        step(new, twins, seed)
        for parameter, twin in zip(parameters, twins, strict=True):
            assert torch.equal(parameter, twin)
    assert_same_state(optimizer, new)


def assert_same_state(one, other):
    first, second = one.state_dict()["state"], other.state_dict()["state"]
    assert first.keys() == second.keys()
    for place, state in first.items():
        assert state.keys() == second[place].keys()
        for key, value in state.items():
            expected = second[place][key]
            if isinstance(value, torch.Tensor):
                assert (value.dtype, value.device) == (expected.dtype, expected.device)
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected)), key


@pytest.mark.parametrize("setting", SETTINGS, ids=named)
def test_the_next_step_is_the_first_one_of_a_new_optimizer(setting):
    kind, options = setting
    parameters = matrices()

    def build(these):
        return kind(groups(these), **copy.deepcopy(options))

    optimizer = build(parameters)
    for seed in range(3):
        step(optimizer, parameters, seed)
    remembered = [value for state in optimizer.state.values() for value in state.values() if value is not None]
    assert reset_momentum([optimizer]) == len(remembered)
    assert_first_step_again(optimizer, parameters, build)


@pytest.mark.parametrize("kind", [optim.Adam, optim.Rprop, partial(optim.Adagrad, initial_accumulator_value=0.2)])
def test_complex_parameters_begin_anew(kind):
    parameters = matrices(torch.complex64)
    optimizer = kind(parameters, lr=0.1)
    for seed in range(3):
        step(optimizer, parameters, seed)
    reset_momentum([optimizer])
    assert_first_step_again(optimizer, parameters, lambda these: kind(these, lr=0.1))


def test_adagrad_keeps_a_memory_which_older_torch_makes_only_once():
    parameters = matrices()
    optimizer = optim.Adagrad(parameters, initial_accumulator_value=0.2)
    step(optimizer, parameters, 0)
    before = optimizer.state[parameters[0]]["sum"]
    reset_momentum([optimizer])
    assert optimizer.state[parameters[0]]["sum"] is before
    assert torch.equal(before, torch.full_like(before, 0.2))


def test_a_parameter_that_had_no_gradient_yet_has_nothing_to_forget():
    parameters = matrices()
    optimizer = optim.Adam(parameters)
    step(optimizer, parameters, 0, skipped=(1,))
    assert reset_momentum([optimizer]) == 6
    assert reset_momentum([optimizer]) == 0
    assert_first_step_again(optimizer, parameters, optim.Adam)


def test_what_is_not_finite_is_gone():
    for kind in (optim.Adam, optim.Adagrad):
        parameters = matrices()
        optimizer = kind(parameters, lr=0.1)
        step(optimizer, parameters, 0)
        before = [parameter.detach().clone() for parameter in parameters]
        for state in optimizer.state.values():
            for value in state.values():
                value.fill_(float("nan"))
        reset_momentum([optimizer])
        step(optimizer, parameters, 1)
        assert all(parameter.isfinite().all() for parameter in parameters)
        assert not torch.equal(parameters[0], before[0])


def test_sparse_adam_begins_anew():
    def train(embedding, optimizer, rows):
        optimizer.zero_grad()
        embedding(torch.tensor(rows)).pow(2).sum().backward()
        optimizer.step()

    embedding = nn.Embedding(6, 2, sparse=True)
    optimizer = optim.SparseAdam(embedding.parameters(), lr=0.1)
    train(embedding, optimizer, [1, 2])
    assert reset_momentum([optimizer]) == 2
    twin = copy.deepcopy(embedding)
    new = optim.SparseAdam(twin.parameters(), lr=0.1)
    train(embedding, optimizer, [2, 4])
    train(twin, new, [2, 4])
    assert torch.equal(embedding.weight, twin.weight)


def test_lbfgs_begins_anew():
    def train(parameter, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = (parameter**4).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(5))
    optimizer = optim.LBFGS([parameter], lr=0.1, max_iter=4)
    train(parameter, optimizer)
    assert reset_momentum([optimizer]) > 3
    twin = nn.Parameter(parameter.detach().clone())
    new = optim.LBFGS([twin], lr=0.1, max_iter=4)
    train(parameter, optimizer)
    train(twin, new)
    assert torch.equal(parameter, twin)


CAPTURABLE = [optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.ASGD, optim.Rprop, optim.Adadelta]
INITIAL = {"mu": 1.0, "mu_product": 1.0, "eta": 0.1, "step_size": 0.1}


@pytest.mark.parametrize("kind", [*CAPTURABLE, optim.RMSprop])
def test_tensors_that_a_graph_may_have_captured_are_filled_in_place(kind):
    parameters = matrices()
    optimizer = kind(parameters, lr=0.1)
    step(optimizer, parameters, 0)
    tensors = dict(optimizer.state[parameters[0]])
    optimizer.param_groups[0]["capturable"] = True
    assert reset_momentum([optimizer]) == 3 * len(tensors)
    for key, value in optimizer.state[parameters[0]].items():
        assert value is tensors[key]
        assert torch.equal(value, torch.full_like(value, INITIAL.get(key, 0.0))), key


def test_groups_differ_in_whether_they_are_captured():
    parameters = matrices()
    optimizer = optim.Adam(groups(parameters))
    step(optimizer, parameters, 0)
    optimizer.param_groups[1]["capturable"] = True
    assert reset_momentum([optimizer]) == 9
    assert list(optimizer.state) == [parameters[2]]
