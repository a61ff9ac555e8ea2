"""Which parameters are trained, and what an optimizer says of itself."""

import gc
import weakref

import pytest
import torch
from torch import nn

from unisono.listen.evidence.optimizer_coverage import LOOKED_AFTER, MOST_NAMED, OptimizerCoverage, describe


@pytest.fixture
def model():
    return nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("used", "forgotten", "idle")})


@pytest.fixture
def optimised(model):
    return OptimizerCoverage(list(model.named_parameters()))


def train(optimised, model, optimizer, steps=LOOKED_AFTER):
    """The facts told at each step."""
    told = []
    for _ in range(steps):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        model["used"].weight.grad = torch.ones(2, 2)
        model["forgotten"].weight.grad = torch.ones(2, 2)
        assert optimised.owns(parameters, optimizer)
        facts = {}
        optimised.look(facts)
        told.append(facts)
    return told


def test_what_no_optimizer_holds_and_what_no_gradient_reaches(optimised, model):
    optimizer = torch.optim.SGD([*model["used"].parameters(), *model["idle"].parameters()])
    told = train(optimised, model, optimizer, LOOKED_AFTER + 10)
    assert [place for place, facts in enumerate(told) if facts] == [LOOKED_AFTER - 1]
    assert told[LOOKED_AFTER - 1]["parameters"] == {
        "trainable": "3",
        "not optimised": "forgotten.weight",
        "never with gradient": "idle.weight",
    }


def test_a_healthy_model_has_nothing_to_name(model):
    del model["idle"]
    optimised = OptimizerCoverage(list(model.named_parameters()))
    told = train(optimised, model, torch.optim.SGD(model.parameters()))
    assert told[-1] == {"parameters": {"trainable": "2"}}


def test_a_parameter_that_is_both_is_named_once(optimised, model):
    told = train(optimised, model, torch.optim.SGD(model["used"].parameters()))[-1]["parameters"]
    assert told == {"trainable": "3", "not optimised": "forgotten.weight, idle.weight"}


def test_a_parameter_that_a_second_optimizer_holds_is_optimised(optimised, model):
    first, second = torch.optim.SGD(model["used"].parameters()), torch.optim.Adam(model["forgotten"].parameters())
    optimised.owns(list(model["forgotten"].parameters()), second)
    told = train(optimised, model, first)
    assert told[-1]["parameters"]["not optimised"] == "idle.weight"


def test_a_parameter_that_is_added_within_the_first_steps_is_optimised(optimised, model):
    optimizer = torch.optim.SGD(model["used"].parameters())
    train(optimised, model, optimizer, 5)
    optimizer.add_param_group({"params": [*model["forgotten"].parameters(), *model["idle"].parameters()]})
    assert "not optimised" not in train(optimised, model, optimizer, LOOKED_AFTER - 5)[-1]["parameters"]


def test_an_optimizer_of_something_else_is_not_ours(optimised):
    other = nn.Linear(2, 2)
    assert not optimised.owns(list(other.parameters()), torch.optim.SGD(other.parameters()))


def test_without_any_optimizer_nothing_is_said(optimised):
    facts = {}
    for _ in range(LOOKED_AFTER + 1):
        optimised.look(facts)
    assert facts == {}


def test_long_lists_are_cut_short():
    named = [(f"p{number}", nn.Parameter(torch.ones(1))) for number in range(MOST_NAMED + 5)]
    other = nn.Parameter(torch.ones(1))
    optimised = OptimizerCoverage([*named, ("other", other)])
    optimizer = torch.optim.SGD([other])
    told = {}
    for _ in range(LOOKED_AFTER):
        optimised.owns([other], optimizer)
        optimised.look(told)
    assert told["parameters"]["not optimised"].endswith(f"p{MOST_NAMED - 1}, and 5 more")


def test_each_optimizer_is_new_once(optimised, model):
    first, second = (torch.optim.SGD(model.parameters()) for _ in range(2))
    assert [optimised.is_new(one) for one in (first, second, first, second)] == [True, True, False, False]


def test_optimizers_and_parameters_are_free_to_go(optimised, model):
    optimizer = torch.optim.SGD(model.parameters())
    optimised.owns(list(model.parameters()), optimizer)
    optimised.is_new(optimizer)
    watched = weakref.ref(optimizer), weakref.ref(model["used"].weight)
    del optimizer
    gc.collect()
    assert watched[0]() is None
    del model["used"]
    optimised.release()
    gc.collect()
    assert watched[1]() is None


def test_an_optimizer_describes_itself_in_texts(model):
    facts = describe(torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1))
    assert facts["class"] == "AdamW"
    assert (facts["groups"], facts["lr"], facts["sharded state"]) == ("1", "0.001", "no")
    assert "weight_decay=0.1" in facts["numbers"]
    assert "betas=0.9 betas=0.999" in facts["numbers"]
    assert "lr=" not in facts["numbers"]
    assert all(type(value) is str for value in facts.values())


def test_a_learning_rate_that_differs_in_the_seventh_digit_shows(model):
    rates = [describe(torch.optim.SGD(model.parameters(), lr=lr))["lr"] for lr in (0.1, 0.1000001)]
    assert rates[0] != rates[1]


def test_what_an_optimizer_takes_up_later_is_taken_back(optimised, model):
    first = torch.optim.SGD([*model["used"].parameters(), *model["idle"].parameters()])
    train(optimised, model, first, LOOKED_AFTER + 2)
    first.add_param_group({"params": list(model["forgotten"].parameters())})
    told = train(optimised, model, first, steps=3)
    assert "not optimised" not in told[0]["parameters"]
    assert told[1:] == [{}, {}]
