"""What every weighting of `unisono.weightings` keeps to, each told once. W = workers, N = numbers in a gradient."""

import copy
import dataclasses
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from unisono import weightings
from unisono.act.weightings.weighting import checked_weights
from unisono.weightings import (
    AdaptiveFilter,
    AgreementFilter,
    FromTorchJD,
    Mean,
    NormAware,
    Preconditioned,
    Weighting,
    Windowed,
)


@dataclass(frozen=True)
class Member:
    """One weighting of the family, and where it says of itself that it is unlike the others."""

    make: Callable[[], Weighting]
    """Made anew for every test: some remember what they have seen."""

    leaves_out: bool = True
    """Who is not finite, and who points the other way."""

    in_order: bool = False
    """The first workers count more, or decide."""

    even: bool = True
    """Equal gradients count the same; otherwise their weights sum to one, which gives the same update."""

    sums_to_one: bool = True
    ours: bool = True
    """False: what is wrapped is compared by identity, and has limits of its own for small numbers."""


def torchjd(name):
    return lambda: FromTorchJD(getattr(pytest.importorskip("torchjd.aggregation"), name)())


MEMBERS = {
    "AdaptiveFilter": [Member(AdaptiveFilter)],
    "AgreementFilter": [
        Member(AgreementFilter),
        Member(lambda: AgreementFilter(order="sequential"), in_order=True),
        Member(lambda: AgreementFilter(order="sequential", fusion="halving"), in_order=True, even=False),
        Member(lambda: AgreementFilter(max_distance=limit_of)),
    ],
    # MGDA takes any one of equal gradients, and UPGrad's weights are longer than the mean's.
    "FromTorchJD": [
        Member(torchjd("MGDA"), ours=False, even=False),
        Member(torchjd("UPGrad"), ours=False, sums_to_one=False),
    ],
    "Mean": [Member(Mean, leaves_out=False)],
    "NormAware": [Member(lambda: NormAware(AgreementFilter())), Member(lambda: NormAware(Mean()), leaves_out=False)],
    "Preconditioned": [
        Member(lambda: Preconditioned(AgreementFilter())),
        Member(lambda: Preconditioned(Mean()), leaves_out=False),
    ],
    "Windowed": [
        Member(lambda: Windowed(AgreementFilter())),
        Member(lambda: Windowed(Preconditioned(NormAware(AdaptiveFilter())))),
        Member(lambda: Windowed(Mean()), leaves_out=False),
    ],
}
"""Each public name, as it is made plain and with what changes what it promises."""

NAMED = {f"{name}-{number}": member for name, members in MEMBERS.items() for number, member in enumerate(members)}


def each_of(members):
    return pytest.mark.parametrize("member", members.values(), ids=members)


each = each_of(NAMED)
each_that_leaves_out = each_of({name: member for name, member in NAMED.items() if member.leaves_out})
each_that_does_not = each_of({name: member for name, member in NAMED.items() if not member.leaves_out})


def limit_of(step):
    return 0.97


def gradients(workers, elements=200, common=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    own_WN = torch.randn(workers, elements, generator=generator, dtype=torch.float64)
    return own_WN + common * torch.randn(elements, generator=generator, dtype=torch.float64)


def gram_of(gradient_WN):
    return gradient_WN @ gradient_WN.T


def problems():
    """Gram matrices of two to nine workers, some alike, one or two turned around, one without a gradient."""
    for seed in range(24):
        gradient_WN = gradients(2 + seed % 8, common=(0.0, 0.5, 2.0)[seed % 3], seed=seed)
        gradient_WN[0] *= (1, -1, 0)[seed // 3 % 3]
        yield gram_of(gradient_WN)


def test_every_public_weighting_is_in_the_family():
    assert set(MEMBERS) | {"Weighting"} == set(weightings.__all__)
    for name, members in MEMBERS.items():
        assert {type(member.make()) for member in members} == {getattr(weightings, name)}


def test_what_they_have_in_common_is_no_weighting_itself():
    assert inspect.isabstract(Weighting)


@each
def test_weights_are_a_mean_of_some_or_nothing(member):
    for gram_WW in problems():
        weight_W = member.make()(gram_WW)
        checked_weights(weight_W, len(gram_WW))
        assert float(weight_W.min()) >= 0
        if member.sums_to_one:
            assert float(weight_W.sum()) == pytest.approx(1) or not weight_W.any()


@each
def test_the_unit_of_the_gradients_does_not_matter(member):
    for gram_WW in problems():
        weight_W = member.make()(gram_WW)
        for scale in (1e-18, 1e-3, 1e6) if member.ours else (1e-3, 1e6):
            torch.testing.assert_close(member.make()(scale * gram_WW), weight_W, rtol=1e-6, atol=1e-6)


@each
def test_the_order_of_workers_does_not_matter(member):
    differs = False
    for number, gram_WW in enumerate(problems()):
        order = torch.randperm(len(gram_WW), generator=torch.Generator().manual_seed(number))
        moved_W, weight_W = member.make()(gram_WW[order][:, order]), member.make()(gram_WW)
        differs |= not torch.allclose(moved_W, weight_W[order], rtol=1e-6, atol=1e-6)
    assert differs == member.in_order


@each
@pytest.mark.parametrize("workers", [2, 4, 7])
def test_equal_gradients_are_averaged(member, workers):
    weight_W = member.make()(gram_of(gradients(1).expand(workers, -1)))
    assert float(weight_W.sum()) == pytest.approx(1)
    if member.even:
        assert weight_W.tolist() == pytest.approx([1 / workers] * workers)


@each
def test_a_worker_alone_counts(member):
    for square in (4.0, 1e-20, 0.0) if member.ours else (4.0, 1e-3):
        assert member.make()(torch.tensor([[square]], dtype=torch.float64)).tolist() == pytest.approx([1])


@each_that_leaves_out
def test_a_worker_alone_that_is_not_finite_does_not_count(member):
    assert member.make()(torch.tensor([[math.inf]])).tolist() == [0]
    assert member.make()(torch.tensor([[math.nan]])).tolist() == [0]


@each_that_leaves_out
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_counts_nothing_and_spoils_nobody(member, poison):
    gradient_WN = gradients(4)
    gradient_WN[1, 5] = poison
    weight_W, rest = member.make()(gram_of(gradient_WN)), [0, 2, 3]
    torch.testing.assert_close(weight_W[rest], member.make()(gram_of(gradient_WN[rest])))
    assert weight_W[1] == 0
    assert (weight_W[rest] > 0).all()


@each_that_leaves_out
def test_nobody_finite_skips_the_step(member):
    assert member.make()(torch.full((3, 3), math.nan)).tolist() == [0, 0, 0]


@each_that_does_not
def test_the_mean_leaves_nobody_out(member):
    assert member.make()(torch.full((4, 4), math.nan)).tolist() == [0.25] * 4


@each
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_weights_are_as_exact_as_the_matrix_and_at_least_float32(member, given, expected):
    gradient_WN = gradients(4)
    gradient_WN[3] *= -1
    gram_WW = gram_of(gradient_WN).to(given)
    before_WW = gram_WW.clone()
    weight_W = member.make()(gram_WW)
    assert (weight_W.dtype, weight_W.device, weight_W.shape) == (expected, gram_WW.device, (4,))
    assert torch.equal(gram_WW, before_WW)
    rough = 1e-6 if given.itemsize > 2 else 0.05
    torch.testing.assert_close(weight_W.double(), member.make()(gram_of(gradient_WN)), rtol=rough, atol=rough)
    if member.leaves_out and member.ours and member.even:
        assert weight_W.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


@each
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_weights_are_where_the_matrix_is(member):
    assert member.make()(gram_of(gradients(4)).cuda()).device.type == "cuda"


@each_that_leaves_out
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 2)])
def test_what_is_not_a_square_matrix_is_refused(member, shape):
    with pytest.raises(ValueError, match=r"should be called with a square matrix\. Found shape \("):
        member.make()(torch.ones(shape))


@each
def test_options_are_shown_compared_and_cannot_be_changed_afterwards(member):
    weighting = member.make()
    assert dataclasses.is_dataclass(weighting)
    with pytest.raises(dataclasses.FrozenInstanceError):
        weighting.max_distance = 1.0
    options = [field for field in dataclasses.fields(weighting) if field.init]
    for option in options:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(weighting, option.name, None)
    shown = ", ".join(f"{option.name}={getattr(weighting, option.name)!r}" for option in options)
    assert repr(weighting) == f"{type(weighting).__name__}({shown})"
    assert copy.copy(weighting) == weighting
    if member.ours:
        assert weighting == member.make()
        assert hash(weighting) == hash(member.make())
    assert weighting != member.make


@each
def test_steering_can_ask_how_the_matrix_is_to_be_taken(member):
    weighting = member.make()
    assert weighting.window >= 1
    assert weighting.damping is None or weighting.damping > 0
    assert type(weighting.at(7)) is type(weighting)
    assert (weighting.at(7).window, weighting.at(7).damping) == (weighting.window, weighting.damping)
