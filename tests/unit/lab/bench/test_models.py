import pytest
import torch

from unisono.lab.bench.models import LLAMA, Transformer, loss_of, named_sizes, shape_for


@pytest.mark.parametrize("parameters", [1_000_000, 10_000_000, 100_000_000, 1_160_000_000, 7_000_000_000])
def test_the_nearest_shape_is_near(parameters):
    shape = shape_for(parameters)
    assert shape.parameters == pytest.approx(parameters, rel=0.1)
    assert shape.width % shape.heads == 0


@pytest.mark.parametrize("shape", [LLAMA, shape_for(1_000_000)])
def test_parameters_are_counted_as_the_model_has_them(shape):
    assert sum(size.numel() for size in named_sizes(shape).values()) == shape.parameters


def test_the_llama_has_1_16_billion_parameters_in_183_tensors():
    assert (LLAMA.parameters, len(named_sizes(LLAMA))) == (1_158_760_448, 183)


def test_every_parameter_is_trained():
    shape = shape_for(1_000_000)
    model = Transformer(shape)
    tokens_BT = torch.randint(shape.vocabulary, (2, 16))
    loss_of(model(tokens_BT), tokens_BT).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_a_token_sees_only_those_before_it():
    shape = shape_for(1_000_000)
    model = Transformer(shape)
    tokens_BT = torch.randint(shape.vocabulary, (1, 8))
    changed_BT = tokens_BT.clone()
    changed_BT[0, 5] = (changed_BT[0, 5] + 1) % shape.vocabulary
    before, after = model(tokens_BT)[0], model(changed_BT)[0]
    assert torch.equal(before[:5], after[:5])
    assert not torch.equal(before[5:], after[5:])
