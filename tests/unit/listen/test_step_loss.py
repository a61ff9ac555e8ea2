"""The local loss is what `backward` is called on, without anybody's scale."""

import pytest
import torch

from unisono.listen.step_loss import StepLoss


@pytest.fixture
def said():
    return []


@pytest.fixture
def loss(said):
    return StepLoss(said.append)


def root(value):
    return torch.tensor(value, requires_grad=True) * 1


def test_one_backward(loss):
    loss.propose(root(2.0), None)
    loss.accept()
    assert loss.value() == 2.0


def test_accumulated_parts_add_up_to_the_mean(loss):
    for value in (1.0, 2.0, 3.0, 6.0):
        loss.propose(root(value) / 4, None)
        loss.accept()
    assert loss.value() == 3.0


def test_a_backward_that_was_not_ours_does_not_count(loss):
    loss.propose(root(5.0), None)
    loss.propose(root(2.0), None)
    loss.accept()
    assert loss.value() == 2.0


def test_the_scalers_factor_is_taken_out(loss):
    plain = root(2.0)
    scaled = plain * torch.tensor(1024.0)
    loss.scaled_by(scaled, 1024.0, plain)
    loss.propose(scaled, None)
    loss.accept()
    assert loss.scale == 1024.0
    assert loss.value() == 2.0


def test_the_scale_is_found_behind_a_division_and_among_several(loss):
    plain = [root(2.0), root(4.0)]
    first, second = (one * torch.tensor(1024.0) for one in plain)
    loss.scaled_by([first, second], 1024.0, plain)
    for scaled in (first, second):
        loss.propose(scaled / 2, None)
        loss.accept()
        assert loss.scale == 1024.0
    assert loss.value() == 3.0


def test_a_multiple_too_large_for_its_type_is_still_a_finite_loss(loss):
    plain = torch.tensor(3.0, dtype=torch.float16, requires_grad=True) * 1
    scaled = plain * torch.tensor(65504.0, dtype=torch.float16)
    assert scaled.isinf()
    loss.scaled_by(scaled, 65504.0, plain)
    loss.propose(scaled, None)
    loss.accept()
    assert loss.value() == 3.0


def test_another_models_scale_is_not_ours(loss):
    other = root(9.0)
    loss.scaled_by(other * torch.tensor(1024.0), 1024.0, other)
    loss.propose(root(2.0), None)
    loss.accept()
    assert loss.scale is None
    assert loss.value() == 2.0


def test_saved_tensors_are_never_unpacked(loss):
    unpacked = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: unpacked.append(1) or tensor):
        scaled = root(2.0) * torch.tensor(1024.0)
    loss.propose(scaled, None)
    loss.accept()
    assert unpacked == []


def test_a_gradient_argument_is_a_factor(loss):
    loss.propose(root(2.0), torch.tensor(0.25))
    loss.accept()
    assert loss.value() == 0.5


@pytest.mark.parametrize(
    ("roots", "why"),
    [
        (lambda: torch.ones(3, requires_grad=True) * 1, "not a scalar"),
        (lambda: [root(1.0), root(2.0)], "several tensors"),
        (lambda: root(2.0) * torch.tensor(65536.0), "unknown scaler"),
    ],
)
def test_unknown_scaling_switches_off_and_is_said_once(loss, said, roots, why):
    for _ in range(3):
        loss.propose(roots(), None)
        loss.accept()
        assert loss.value() is None
        loss.reset()
    assert len(said) == 1
    assert why in said[0]
    assert "record_loss" in said[0]


@pytest.mark.parametrize("factor", [0.5, 2])
def test_plain_numbers_are_part_of_the_loss(loss, said, factor):
    loss.propose(root(4.0) * factor, None)
    loss.accept()
    assert loss.value() == 4.0 * factor
    assert said == []


def test_the_users_word_wins(loss, said):
    loss.record(torch.tensor([1.0, 3.0]))
    loss.record(4.0)
    loss.propose(torch.ones(3, requires_grad=True) * 1, None)
    loss.accept()
    assert loss.value() == 3.0
    assert said == []


def test_the_graph_is_not_kept_alive(loss):
    loss.record(root(1.0))
    assert isinstance(loss.value(), float)
