"""What becomes of buffers, BatchNorm's statistics above all."""

import copy

import pytest
import torch

import unisono
from unisono.weightings import AgreementFilter, Mean
from unit.act.microbatching.problems import batches, equal, network, run

pytestmark = pytest.mark.usefixtures("route")


@pytest.mark.parametrize("order", ["any", "sequential"])
def test_statistics_of_rejected_micro_batches_can_be_forgotten(order):
    micros = batches(3)
    opposite = (micros[0][0] * 40, 2 - micros[0][1])
    model = network(batch_norm=True)
    alone = [copy.deepcopy(model) for _ in range(2)]
    for other, micro in zip(alone, (micros[0], micros[0]), strict=True):
        other(micro[0])
    workers = unisono.microbatches(model, weighting=AgreementFilter(0.3, order=order), forget_rejected=True)
    weights = run(workers, model, [micros[0], micros[0], opposite])
    assert weights.tolist() == [0.5, 0.5, 0]
    assert torch.allclose(model[1].running_mean, alone[0][1].running_mean)
    assert torch.allclose(model[1].running_var, alone[0][1].running_var)
    assert model[1].num_batches_tracked == 1


def test_forgetting_means_over_the_kept_and_starts_all_from_the_same():
    model, micros = network(batch_norm=True), batches(2)
    expected = []
    for inputs, _ in micros:
        other = copy.deepcopy(model)
        other(inputs)
        expected.append(other[1].running_mean)
    run(unisono.microbatches(model, weighting=Mean(), forget_rejected=True), model, micros)
    assert torch.allclose(model[1].running_mean, (expected[0] + expected[1]) / 2)


def test_nobody_kept_leaves_the_statistics_as_before_the_step():
    model = network(batch_norm=True)
    before = copy.deepcopy(model.state_dict())
    workers = unisono.microbatches(model, weighting=AgreementFilter(0.0001), forget_rejected=True)
    assert not run(workers, model, batches(3)).any()
    assert equal(before, model.state_dict())


def test_statistics_are_left_alone_unless_asked():
    plain, model = network(batch_norm=True), network(batch_norm=True)
    for inputs, _ in batches(3):
        plain(inputs)
    workers = unisono.microbatches(model, weighting=AgreementFilter(0.0001))
    assert not run(workers, model, batches(3)).any()
    assert equal(plain.state_dict(), model.state_dict())


def test_every_step_is_its_own():
    model, twin = network(batch_norm=True), network(batch_norm=True)
    workers = unisono.microbatches(model, weighting=Mean(), forget_rejected=True)
    for seed in range(3):
        run(workers, model, batches(2, seed))
        run(unisono.microbatches(twin, weighting=Mean(), forget_rejected=True), twin, batches(2, seed))
    assert equal(model.state_dict(), twin.state_dict())
    assert model[1].num_batches_tracked == 3
