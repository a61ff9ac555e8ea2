"""Virtual workers against plain models: gradients, sketches, updates, batches. V = virtual workers of all runs."""

from dataclasses import replace

import pytest
import torch
from benchmarks.detection.setting import Setting
from benchmarks.detection.virtual_workers import Fleet

from unisono.lab.faults.injections import INJECTIONS, Injection
from unisono.sketch import Fold, default_length, dequantise, quantise, window_seed, wrap
from unit.detection.plain_models import LOSSES

SMALL = Setting(workers=3, batch=4, samples=120)


class Onlooker(Injection):
    """Changes nothing, and keeps what passes: each worker's inputs, targets and gradient of the last step."""

    def inputs_of(self, step, workers):
        self.batches, self.gradients = [], []
        return range(workers)

    def gradients_of(self, step, workers):
        return range(workers)

    def batch(self, inputs, targets, generator):
        self.batches.append((inputs.clone(), targets.clone()))
        return inputs, targets

    def gradient(self, gradient, generator):
        self.gradients.append(gradient.clone())
        return gradient


def fleet_of(setting, runs=2, seed=0):
    return Fleet(setting, [Onlooker() for _ in range(runs)], seed)


def weights_of(fleet, run):
    return {name: weights[run].clone() for name, weights in fleet.weights.items()}


def plain_gradient(task, weights, inputs, targets):
    leaves = {name: one.clone().requires_grad_() for name, one in weights.items()}
    loss = LOSSES[task](leaves, inputs, targets)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return loss.item(), torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("task", LOSSES)
def test_gradients_are_those_of_a_plain_model(task):
    fleet = fleet_of(replace(SMALL, task=task))
    weights = [weights_of(fleet, run) for run in range(2)]
    all_ranks_steps = fleet.step(0, [0, 0])
    for run, all_ranks in enumerate(all_ranks_steps):
        onlooker = fleet.injections[run]
        for worker, batch in enumerate(onlooker.batches):
            loss, gradient = plain_gradient(task, weights[run], *batch)
            assert all_ranks.signal_W[worker].loss == pytest.approx(loss, rel=1e-4)
            assert torch.allclose(onlooker.gradients[worker], gradient, rtol=1e-3, atol=1e-5)
            assert all_ranks.signal_W[worker].squared_norm == pytest.approx(float(gradient.square().sum()), rel=1e-3)


def test_norms_are_told_by_layer_group():
    fleet = fleet_of(SMALL, runs=1)
    (all_ranks,) = fleet.step(0, [0])
    sizes = [16 * 32 + 32, 32 * 32 + 32, 32 * 10 + 10]
    parts = fleet.injections[0].gradients[1].split(sizes)
    assert fleet.groups == ("first", "second", "head")
    assert all_ranks.signal_W[1].squared_norm_G == pytest.approx(
        [float(part.square().sum()) for part in parts], rel=1e-5
    )


@pytest.mark.parametrize("task", LOSSES)
def test_the_sketch_is_that_of_the_product(task):
    fleet = fleet_of(replace(SMALL, task=task))
    all_ranks = fleet.step(0, [0, 0])[1]
    names, elements = list(fleet.weights), [one[0].numel() for one in fleet.weights.values()]
    length = default_length(sum(elements))
    fold = Fold(names, elements, length, "cpu", window_seed(0))
    for worker, gradient in enumerate(fleet.injections[1].gradients):
        accumulator = torch.zeros(2 * length)
        for index, part in enumerate(gradient.split(elements)):
            fold.add(index, part, accumulator)
        sketch = wrap(accumulator)
        step_size = float(sketch.abs().max()) / 127
        assert torch.allclose(all_ranks.sketch_WK[worker], dequantise(*quantise(sketch)), atol=1.01 * step_size)
        assert float((all_ranks.sketch_WK[worker] - sketch).abs().max()) <= 0.51 * step_size


def test_a_step_that_is_not_heard_has_no_sketch_but_a_loss():
    all_ranks_steps = fleet_of(SMALL).step(0, [0, None])
    assert all_ranks_steps[0].sketch_WK is not None
    assert all_ranks_steps[1].sketch_WK is None
    assert (all_ranks_steps[1].signal_W[0].heard, all_ranks_steps[1].signal_W[0].loss is not None) == (False, True)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "gradient descent"])
def test_the_update_is_that_of_one_model_with_the_mean_gradient(optimizer):
    fleet = fleet_of(replace(SMALL, optimizer=optimizer, rate=0.05, warm_up=2))
    own = {name: torch.nn.Parameter(one) for name, one in weights_of(fleet, 1).items()}
    plain = {
        "adamw": lambda: torch.optim.AdamW(own.values(), 0.05),
        "sgd": lambda: torch.optim.SGD(own.values(), 0.05, momentum=0.9),
        "gradient descent": lambda: torch.optim.SGD(own.values(), 0.05),
    }[optimizer]()
    for step, rate in enumerate((0.05 / 3, 0.1 / 3, 0.05)):
        fleet.step(step, [None, None])
        mean = torch.stack(fleet.injections[1].gradients).mean(0)
        for one, part in zip(own.values(), mean.split([one.numel() for one in own.values()]), strict=True):
            one.grad = part.reshape(one.shape)
        plain.param_groups[0]["lr"] = rate
        plain.step()
    for name, one in weights_of(fleet, 1).items():
        assert torch.allclose(one, own[name], rtol=1e-5, atol=1e-6)


def test_accumulated_batches_count_as_their_mean():
    fleet = fleet_of(replace(SMALL, accumulate=3), runs=1)
    weights = weights_of(fleet, 0)
    (all_ranks,) = fleet.step(0, [0])
    # `inputs_of` is asked once for each of the three batches: only the last is kept, and the first two are drawn again.
    again = fleet_of(replace(SMALL), runs=1)
    gradients = []
    for step in range(3):
        again.step(step, [None])
        gradients.append(plain_gradient("clouds", weights, *again.injections[0].batches[0])[1])
    assert torch.allclose(fleet.injections[0].gradients[0], torch.stack(gradients).mean(0), rtol=1e-3, atol=1e-5)
    assert all_ranks.signal_W[0].samples == 12


def test_the_last_batch_of_an_epoch_is_short_and_no_sample_comes_twice():
    fleet = fleet_of(replace(SMALL, samples=31), runs=1)
    sizes, drawn = [], []
    for step in range(6):
        (all_ranks,) = fleet.step(step, [None])
        sizes.append(all_ranks.signal_W[0].samples)
        drawn.append(torch.cat([inputs for inputs, _ in fleet.injections[0].batches]))
    assert sizes == [4, 4, 2, 4, 4, 2]
    for epoch in (drawn[:3], drawn[3:]):
        assert len(torch.cat(epoch).unique(dim=0)) == 30
    assert not torch.equal(drawn[0], drawn[3])


def test_runs_differ_in_data_and_weights():
    fleet = fleet_of(SMALL)
    fleet.step(0, [None, None])
    assert not torch.equal(fleet.injections[0].batches[0][0], fleet.injections[1].batches[0][0])
    assert not torch.equal(fleet.weights["first.weight"][0], fleet.weights["first.weight"][1])


@pytest.mark.parametrize("fault", ["gradient-x10", "gradient-noise", "wrong-labels-100", "toxic-batch"])
def test_an_injection_leaves_the_other_runs_as_they_were(fault):
    healthy = Fleet(SMALL, [Injection(), Injection()], 3)
    faulty = Fleet(SMALL, [Injection(), INJECTIONS[fault](1, 2)], 3)
    for step in range(8):
        expected = healthy.step(step, [0, 0])[0]
        found = faulty.step(step, [0, 0])[0]
        assert torch.equal(found.sketch_WK, expected.sketch_WK)
        assert [one.loss for one in found.signal_W] == [one.loss for one in expected.signal_W]
    for name, weights in faulty.weights.items():
        assert torch.equal(weights[0], healthy.weights[name][0])
    assert any(not torch.equal(one[1], healthy.weights[name][1]) for name, one in faulty.weights.items())


def test_a_skipped_step_moves_nothing():
    fleet = fleet_of(replace(SMALL, skip_every=2), runs=1)
    fleet.step(0, [0])
    before = weights_of(fleet, 0)
    (all_ranks,) = fleet.step(1, [0])
    assert all(one.skipped and not one.finite for one in all_ranks.signal_W)
    assert all(torch.equal(one, before[name]) for name, one in weights_of(fleet, 0).items())
