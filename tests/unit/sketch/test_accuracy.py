"""How far norms and cosines from sketches are from exact ones, on gradients that are hard to sketch.

Suffixes give shapes: W = workers, N = elements of all parameters, K = sketch length.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unisono.sketch import Fold, narrow, window_seed, wrap
from unisono.sketch.gram import gram

ROWS, COLUMNS, MATRICES, WORKERS = 1024, 256, 8, 4


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for each other at every row of a busy machine make these tests ten times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def heavy_tails() -> Tensor:
    shared_N, own_WN = torch.randn(MATRICES * ROWS * COLUMNS), torch.randn(WORKERS, MATRICES * ROWS * COLUMNS)
    return (0.6 * shared_N + own_WN) * torch.randn(MATRICES * ROWS * COLUMNS).mul(1.5).exp()


def outlier_channels() -> Tensor:
    factor = torch.ones(COLUMNS)
    factor[[17, 133]] = 40
    return heavy_tails() * factor.repeat(MATRICES * ROWS)


def all_positive() -> Tensor:
    return torch.randn(WORKERS, MATRICES * ROWS * COLUMNS).abs()


def sketches(gradient_WN: Tensor, length: int, seed: int) -> Tensor:
    numel = gradient_WN.shape[1] // MATRICES
    fold = Fold([f"h.{i}.weight" for i in range(MATRICES)], [numel] * MATRICES, length, "cpu", seed)
    accumulator_W2K = torch.zeros(len(gradient_WN), 2 * length)
    for gradient_N, accumulator_2K in zip(gradient_WN, accumulator_W2K, strict=True):
        for i, matrix in enumerate(gradient_N.view(MATRICES, -1, COLUMNS)):
            fold.add(i, matrix, accumulator_2K)
    return wrap(accumulator_W2K)


def inflation(gradient_WN: Tensor, length: int, seeds: int, narrowed: int | None = None) -> float:
    """Mean squared error of a pairwise cosine in units of (1 + cos^2) / length, the variance if energy is spread."""
    exact_WW = gram(gradient_WN)
    norm_WW = exact_WW.diagonal().sqrt().outer(exact_WW.diagonal().sqrt())
    cosine_WW = exact_WW / norm_WW
    pairs = torch.triu_indices(WORKERS, WORKERS, 1).unbind()
    errors = []
    for seed in map(window_seed, range(seeds)):
        sketch_WK = sketches(gradient_WN, length, seed)
        if narrowed:
            sketch_WK = narrow(sketch_WK, narrowed, seed)
        errors.append((gram(sketch_WK) / norm_WW - cosine_WW)[pairs])
    return float(torch.stack(errors).square().mean() * (narrowed or length) / (1 + cosine_WW[pairs] ** 2).mean())


@pytest.mark.parametrize("make", [heavy_tails, outlier_channels, all_positive])
@pytest.mark.parametrize(("length", "seeds"), [(65_536, 24), (4_096, 12)])
def test_cosines_are_as_exact_as_with_independent_signs(make, length: int, seeds: int) -> None:
    torch.manual_seed(0)
    assert inflation(make(), length, seeds) <= 1.5


@pytest.mark.parametrize("make", [heavy_tails, outlier_channels, all_positive])
def test_narrowed_sketches_lose_no_more_than_their_length(make) -> None:
    torch.manual_seed(0)
    assert inflation(make(), 65_536, seeds=32, narrowed=4_096) <= 1.5


def test_estimates_are_unbiased() -> None:
    torch.manual_seed(0)
    gradient_N = torch.randn(1, 64 * 1024).abs() * torch.linspace(0.1, 3, 64 * 1024)
    exact = gradient_N.double().square().sum()
    ratios = torch.stack([sketches(gradient_N, 1_024, seed).double().square().sum() / exact for seed in range(200)])
    assert abs(ratios.mean() - 1) < 4 * ratios.std() / 200**0.5
    assert ratios.std() < 1.5 * (2 / 1_024) ** 0.5


def squared_norm(gradient: Tensor) -> Tensor:
    return Fold(["weight"], [gradient.numel()], 65_536, "cpu").add(0, gradient, torch.zeros(2 * 65_536))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["normal", "constant"])
def test_squared_norm_of_millions_of_elements(dtype: torch.dtype, kind: str) -> None:
    torch.manual_seed(0)
    gradient = torch.randn(4_000_000, dtype=dtype) if kind == "normal" else torch.full((4_000_000,), 0.1, dtype=dtype)
    exact = sum(part.double().square().sum() for part in gradient.split(1 << 20))
    assert abs(squared_norm(gradient) / exact - 1) < 2e-7


def test_half_precision_neither_overflows_nor_vanishes() -> None:
    large, small = torch.full((1000,), 300.0), torch.full((1000,), 1e-5)
    for gradient in (large.half(), small.half()):
        exact = gradient.double().square().sum()
        assert abs(squared_norm(gradient) / exact - 1) < 1e-6
