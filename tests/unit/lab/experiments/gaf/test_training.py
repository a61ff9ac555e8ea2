"""The training in one vector does what a user's loop with `unisono.microbatches` does."""

import pytest
import torch
from torch.nn import functional

import unisono
from unisono.lab.experiments.gaf.images import draw_epoch, generated, shown
from unisono.lab.experiments.gaf.plan import RunPlan
from unisono.lab.experiments.gaf.resnet import resnet18
from unisono.lab.experiments.gaf.training import (
    METHODS,
    MOMENTUM,
    WEIGHT_DECAY,
    FilteredTraining,
    flattened,
    mean_cosine,
    noise_scale,
)

CPU = torch.device("cpu")
DATA = generated(classes=4, train=40)


@pytest.fixture
def exact():
    """Without rounding to speak of: normalisation over a few images makes much of little."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def plan(method="averaging", tau=None, workers=2, **settings):
    fields = {"noise": 50, "microbatch": 8, "seed": 1, "epochs": 3, "learning_rate": 0.05} | settings
    return RunPlan(method=method, tau=tau, workers=workers, **fields)


def training(run_plan):
    return FilteredTraining(run_plan, DATA, CPU, width=4)


def trained(run_plan, epochs):
    one = training(run_plan)
    epoch_ends = 0
    for is_end in one.train():
        epoch_ends += is_end
        if epoch_ends == epochs:
            break
    return one


def in_a_loop_of_ones_own(run_plan, epochs):
    """The same by the public way: microbatches, torch's optimizer, one image tensor after the other."""
    torch.manual_seed(run_plan.seed)
    model = resnet18(DATA.classes, width=4)
    optimizer = torch.optim.SGD(model.parameters(), 1.0, MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True)
    workers = unisono.microbatches(model, weighting=METHODS[run_plan.method](run_plan.tau))
    label_N = training(run_plan)._label_N
    mean, deviation = (one[:, None, None] for one in DATA.mean_and_deviation)
    skipped = []
    for epoch in range(epochs):
        draw, count = draw_epoch(label_N, run_plan, DATA.classes, epoch), 0
        for step in range(len(draw)):
            done = (epoch + step / len(draw)) / run_plan.epochs
            rate = run_plan.learning_rate * (1 + torch.cos(torch.tensor(torch.pi * done))) / 2
            optimizer.param_groups[0]["lr"] = float(rate)
            for worker in range(run_plan.workers):
                index = draw.index_SWB[step, worker]
                pixels = shown(DATA.padded_train, 16, index, draw.crop_SWB2[step, worker], draw.flip_SWB[step, worker])
                with workers.microbatch():
                    functional.cross_entropy(model((pixels.double() - mean) / deviation), label_N[index]).backward()
            count += not workers.reduce().any()
            optimizer.step()
        skipped.append(count / len(draw))
    return model, skipped


@pytest.mark.parametrize(
    ("method", "tau", "workers"),
    [
        ("averaging", None, 2),
        ("published", 0.97, 2),
        ("published", 0.97, 4),
        ("halving", 0.97, 4),
        ("order-independent", 0.97, 4),
        ("norm-aware", 0.97, 4),
    ],
)
@pytest.mark.usefixtures("exact")
def test_it_trains_like_a_loop_with_microbatches(method, tau, workers):
    run_plan = plan(method, tau, workers)
    one = trained(run_plan, epochs=2)
    model, skipped = in_a_loop_of_ones_own(run_plan, epochs=2)
    assert one.history["skipped"] == [round(share, 4) for share in skipped]
    averaged = trained(plan("averaging", None, workers), epochs=2)
    assert torch.equal(one.flat_P, averaged.flat_P) == (method == "averaging"), "the filter left somebody out"
    torch.testing.assert_close(one.flat_P, flattened(model.parameters()), rtol=1e-6, atol=1e-8)


def test_with_two_microbatches_the_published_filter_halving_and_ours_are_one():
    ended = [trained(plan(method, 0.97), epochs=1).flat_P for method in ("published", "halving", "order-independent")]
    assert torch.equal(ended[0], ended[1])
    assert torch.equal(ended[0], ended[2])


def test_a_skipped_step_changes_neither_weights_nor_momentum():
    one = training(plan("published", 0.0))
    before = one.flat_P.clone()
    for is_end in one.train():
        if is_end:
            break
    assert one.history["skipped"] == [1.0]
    assert torch.equal(one.flat_P, before)
    assert not one._momentum_P.any()


@pytest.mark.parametrize("method", ["averaging", "adaptive", "preconditioned"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(method, tmp_path):
    run_plan = plan(method, 0.97 if method == "preconditioned" else None, workers=4)
    whole = trained(run_plan, epochs=3)
    first = trained(run_plan, epochs=1)
    first.save(tmp_path / "run.pt")
    second = training(run_plan)
    second.load(tmp_path / "run.pt")
    if method == "adaptive":
        assert vars(second._weighting._memory) == vars(first._weighting._memory)
        assert second._weighting._memory.steps > 0
    assert list(second.train()).count(True) == 2
    assert torch.equal(second.flat_P, whole.flat_P)
    assert second.history == whole.history


def test_preconditioned_directions_are_divided_by_the_root_of_second_moments():
    one = trained(plan("preconditioned", 2.0), epochs=1)
    one._measure()
    parts = one._second_moment_P.split([parameter.numel() for parameter in one.model.parameters()])
    root_P = torch.cat([part.sqrt() + 0.1 * part.mean().sqrt() for part in parts])
    seen_WP = one._gradient_WP / root_P
    torch.testing.assert_close(one._gram_WW, seen_WP @ seen_WP.T)


def test_what_was_learnt_by_heart_is_counted():
    """Four images: two are told right by the given label, two of the labels are wrong, one is both."""
    one = training(plan())
    logits = 5.0 * torch.eye(4)[[0, 1, 0, 0]]
    one._count(logits, torch.tensor([0, 1, 2, 3]), torch.tensor([True, False, True, False]))
    assert one._counts_4.tolist() == [4, 2, 2, 1]


def test_without_wrong_labels_nothing_is_learnt_by_heart():
    assert trained(plan(noise=0), epochs=1).history["memorised"] == [None]


def test_the_published_model():
    """The sizes of torchvision's resnet18 with 100 classes."""
    model = resnet18(100)
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_227_812
    assert [
        part.shape[2] for part in (model[:4](torch.zeros(2, 3, 32, 32)), model[:-3](torch.zeros(2, 3, 32, 32)))
    ] == [8, 1]
    assert resnet18(100, "cifar")[:3](torch.zeros(2, 3, 32, 32)).shape[2] == 32


def test_cosines_and_noise_scale():
    generator = torch.Generator().manual_seed(0)
    signal = torch.ones(200)
    gradient_SWP = signal + 3 * torch.randn(4_000, 2, 200, generator=generator)
    gram_SWW = gradient_SWP @ gradient_SWP.transpose(1, 2)
    assert mean_cosine(gram_SWW) == pytest.approx(0.1, abs=0.01)
    assert noise_scale(gram_SWW, microbatch=10) == pytest.approx(10 * 9, rel=0.05)
    assert mean_cosine(gram_SWW[:, :1, :1]) is None
    assert noise_scale(gram_SWW[:, :1, :1], microbatch=10) is None
