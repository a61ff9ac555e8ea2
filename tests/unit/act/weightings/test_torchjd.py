"""Aggregators of the real package, given inner products, against the same ones given whole gradients.

W = workers, N = numbers in a gradient.
"""

import math

import pytest
import torch

from unisono.weightings import AgreementFilter, FromTorchJD

aggregation = pytest.importorskip("torchjd.aggregation")

AGGREGATORS = {
    "Krum": lambda: aggregation.Krum(n_byzantine=1, n_selected=3),
    "UPGrad": lambda: aggregation.UPGrad(),
    "DualProj": lambda: aggregation.DualProj(),
    "MGDA": lambda: aggregation.MGDA(),
    "PCGrad": lambda: aggregation.PCGrad(),
    "IMTL-G": lambda: aggregation.IMTLG(),
    "AlignedMTL": lambda: aggregation.AlignedMTL(),
}


def gradients(workers=6, elements=80, seed=0):
    generator = torch.Generator().manual_seed(seed)
    own_WN = torch.randn(workers, elements, generator=generator, dtype=torch.float64)
    return own_WN + 0.5 * torch.randn(elements, generator=generator, dtype=torch.float64)


def gram_of(gradient_WN):
    return gradient_WN @ gradient_WN.T


@pytest.mark.parametrize("name", AGGREGATORS)
def test_the_update_is_that_of_the_package(name):
    for seed in range(5):
        gradient_WN = gradients(seed=seed)
        torch.manual_seed(seed)
        expected_N = AGGREGATORS[name]()(gradient_WN)
        torch.manual_seed(seed)
        weight_W = FromTorchJD(AGGREGATORS[name]())(gram_of(gradient_WN))
        assert weight_W.dtype == torch.float64
        torch.testing.assert_close(weight_W @ gradient_WN, expected_N, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_left_out(name, poison):
    gradient_WN = gradients()
    gradient_WN[2, 7] = poison
    rest = [0, 1, 3, 4, 5]
    torch.manual_seed(0)
    expected_N = AGGREGATORS[name]()(gradient_WN[rest])
    torch.manual_seed(0)
    weight_W = FromTorchJD(AGGREGATORS[name]())(gram_of(gradient_WN))
    assert weight_W[2] == 0
    torch.testing.assert_close(weight_W[rest] @ gradient_WN[rest], expected_N, rtol=1e-6, atol=1e-6)


def test_krum_selects_the_good_ones():
    gradient_WN = gradients()
    gradient_WN[0] = -20 * gradient_WN[1]
    weight_W = FromTorchJD(AGGREGATORS["Krum"]())(gram_of(gradient_WN))
    assert weight_W[0] == 0
    assert sorted(weight_W.tolist())[-3:] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(
    "aggregator",
    [aggregation.TrimmedMean(trim_number=1), aggregation.GradDrop(), aggregation.Krum, AgreementFilter(), None],
    ids=lambda one: type(one).__name__,
)
def test_what_does_not_work_on_inner_products_is_refused(aggregator):
    with pytest.raises(TypeError, match=r"`aggregator` should be .* with a `gramian_weighting`, .*\. Found \w+\."):
        FromTorchJD(aggregator)
