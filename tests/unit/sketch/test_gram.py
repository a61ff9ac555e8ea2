"""Agreement from the Gram matrix, against plain vectors.

Suffixes give shapes: W = workers, N = elements, K = sketch length.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unisono.sketch.gram import (
    cosines,
    gram,
    leave_one_out,
    likeliest,
    mean_pairwise,
    noise,
    shift_to_mean,
    weighted_mean_cosine,
)


def workers(count: int = 6, elements: int = 20_000, shared: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    own_WN = torch.randn(count, elements, generator=generator, dtype=torch.float64)
    scale_W = torch.linspace(0.5, 3, count, dtype=torch.float64)
    return (own_WN + shared * torch.randn(elements, generator=generator, dtype=torch.float64)) * scale_W[:, None]


def count_sketch(gradient_WN: Tensor, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    bucket_N = torch.randint(length, gradient_WN.shape[1:], generator=generator)
    sign_N = torch.randint(2, gradient_WN.shape[1:], generator=generator) * 2 - 1
    return torch.zeros(len(gradient_WN), length, dtype=torch.float64).index_add_(1, bucket_N, gradient_WN * sign_N)


def pairs(matrix_WW: Tensor) -> Tensor:
    return matrix_WW[torch.triu_indices(len(matrix_WW), len(matrix_WW), 1).unbind()]


def mean_square(gradient_WN: Tensor) -> Tensor:
    return gradient_WN.mean(0).square().sum()


def test_gram_is_in_float64() -> None:
    sketch_WK = torch.tensor([[1e4, 1.0], [1e4, -1.0]])
    assert gram(sketch_WK).tolist() == [[1e8 + 1, 1e8 - 1], [1e8 - 1, 1e8 + 1]]


def test_cosines_of_vectors() -> None:
    gradient_WN = workers()
    expected_WW = torch.nn.functional.cosine_similarity(gradient_WN[:, None], gradient_WN, dim=-1)
    torch.testing.assert_close(cosines(gram(gradient_WN)), expected_WW)


def test_cosines_stay_in_range() -> None:
    gram_WW = torch.tensor([[1.0, 1.1, -1.2], [1.1, 1.0, 0.0], [-1.2, 0.0, 1.0]], dtype=torch.float64)
    assert cosines(gram_WW)[0].tolist() == [1, 1, -1]


@pytest.mark.parametrize("poison", [0.0, math.nan, math.inf])
def test_silent_workers_do_not_spoil_others(poison: float) -> None:
    gradient_WN = workers(4)
    healthy_WW = gram(gradient_WN[:3])
    gradient_WN[3] = poison
    gram_WW = gram(gradient_WN)
    assert cosines(gram_WW)[3].isnan().all()
    torch.testing.assert_close(cosines(gram_WW)[:3, :3], cosines(healthy_WW))
    assert leave_one_out(gram_WW)[3].isnan()
    torch.testing.assert_close(leave_one_out(gram_WW)[:3], leave_one_out(healthy_WW))
    torch.testing.assert_close(mean_pairwise(gram_WW), mean_pairwise(healthy_WW))
    likely_WW = likeliest(gram_WW, gram_WW.diagonal())
    torch.testing.assert_close(likely_WW[:3, :3], healthy_WW)
    assert cosines(likely_WW)[3].isnan().all()


def test_likeliest_solves_the_cubic() -> None:
    gradient_WN = workers(shared=1.5)
    sketch_WW, m_W = gram(count_sketch(gradient_WN, 1024, 0)), gradient_WN.square().sum(1)
    a, d = pairs(likeliest(sketch_WW, m_W)), pairs(sketch_WW)
    m1, m2 = (pairs(x) for x in (m_W[:, None].expand(6, 6), m_W.expand(6, 6)))
    s1, s2 = (pairs(x) for x in (sketch_WW.diagonal()[:, None].expand(6, 6), sketch_WW.diagonal().expand(6, 6)))
    cubic = a**3 - a**2 * d + a * (-m1 * m2 + m1 * s2 + m2 * s1) - m1 * m2 * d
    assert (cubic.abs() < 1e-9 * (m1 * m2) ** 1.5).all()


def test_likeliest_beats_both_plain_estimators() -> None:
    gradient_WN = workers(shared=3.0)
    exact_WW = gram(gradient_WN)
    norm_W = exact_WW.diagonal().sqrt()
    errors: dict[str, list[Tensor]] = {"exact norms": [], "own norms": [], "likeliest": []}
    for seed in range(40):
        sketch_WW = gram(count_sketch(gradient_WN, 1024, seed))
        likely_WW = likeliest(sketch_WW, norm_W**2)
        errors["exact norms"].append(pairs(sketch_WW / norm_W[:, None] / norm_W - cosines(exact_WW)))
        errors["own norms"].append(pairs(cosines(sketch_WW) - cosines(exact_WW)))
        errors["likeliest"].append(pairs(cosines(likely_WW) - cosines(exact_WW)))
    rmse = {name: torch.stack(error).square().mean().sqrt() for name, error in errors.items()}
    assert rmse["likeliest"] < 0.85 * rmse["own norms"] < 0.3 * rmse["exact norms"]


def test_likeliest_keeps_copies_and_opposites() -> None:
    one = workers(1)[0]
    gradient_WN = torch.stack([one, 2 * one, -one])
    likely_WW = likeliest(gram(count_sketch(gradient_WN, 1024, 3)), gradient_WN.square().sum(1))
    torch.testing.assert_close(likely_WW, gram(gradient_WN), rtol=1e-9, atol=0)


@pytest.mark.parametrize("share", [0.0, 1e-3, 0.2, 0.4, 5.0])
def test_likeliest_survives_unlucky_sketches(share: float) -> None:
    sketch_WW = share * torch.tensor([[1.0, 0.7], [0.7, 1.0]], dtype=torch.float64)
    likely_WW = likeliest(sketch_WW, torch.ones(2))
    assert 0 <= likely_WW[0, 1] <= 1
    assert likely_WW.diagonal().tolist() == [1, 1]


@pytest.mark.parametrize("shared", [0.0, 0.5, 3.0])
def test_shift_makes_the_sum_exact_and_pairs_no_worse(shared: float) -> None:
    gradient_WN = workers(shared=shared)
    exact_WW = gram(gradient_WN)
    before, after = [], []
    for seed in range(40):
        likely_WW = likeliest(gram(count_sketch(gradient_WN, 1024, seed)), exact_WW.diagonal())
        shifted_WW = shift_to_mean(likely_WW, mean_square(gradient_WN))
        torch.testing.assert_close(shifted_WW.sum(), exact_WW.sum(), rtol=1e-12, atol=0)
        before.append(pairs(cosines(likely_WW) - cosines(exact_WW)))
        after.append(pairs(cosines(shifted_WW) - cosines(exact_WW)))
    assert torch.stack(after).square().mean() < torch.stack(before).square().mean()


def test_shift_stays_in_range_and_offers_the_rest_to_others() -> None:
    gram_WW = torch.tensor([[1.0, 0.98, 0.0], [0.98, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    shifted_WW = shift_to_mean(gram_WW, (3 + 2 * 1.3) / 9)
    assert shifted_WW[0, 1] == 1
    torch.testing.assert_close(shifted_WW.sum(), torch.tensor(5.6, dtype=torch.float64))
    assert torch.equal(shifted_WW, shifted_WW.T)
    assert shifted_WW.diagonal().tolist() == [1, 1, 1]


def test_shift_to_an_impossible_mean_ends_at_the_limits() -> None:
    shifted_WW = shift_to_mean(torch.eye(3, dtype=torch.float64), 100.0)
    assert (shifted_WW == 1).all()


@pytest.mark.parametrize("mean", [math.nan, math.inf])
def test_shift_without_a_finite_mean_changes_nothing(mean: float) -> None:
    gram_WW = gram(workers(3))
    assert torch.equal(shift_to_mean(gram_WW, mean), gram_WW)


def test_leave_one_out_of_vectors() -> None:
    gradient_WN = workers()
    rest_WN = gradient_WN.sum(0) - gradient_WN
    expected_W = torch.nn.functional.cosine_similarity(gradient_WN, rest_WN, dim=-1)
    torch.testing.assert_close(leave_one_out(gram(gradient_WN)), expected_W)


def test_leave_one_out_without_a_rest_is_nan() -> None:
    one = workers(1)[0]
    cosine_W = leave_one_out(gram(torch.stack([one, -one, one])))
    assert cosine_W[[0, 2]].isnan().all()
    assert cosine_W[1] == pytest.approx(-1)


def test_mean_pairwise_of_vectors() -> None:
    gram_WW = gram(workers())
    torch.testing.assert_close(mean_pairwise(gram_WW), pairs(cosines(gram_WW)).mean())


def test_weighted_mean_cosine_is_exact() -> None:
    gradient_WN = workers()
    norm_W = gradient_WN.norm(dim=1)
    weight_WW = norm_W.outer(norm_W)
    expected = pairs(gram(gradient_WN)).sum() / pairs(weight_WW).sum()
    torch.testing.assert_close(weighted_mean_cosine(norm_W**2, mean_square(gradient_WN)), expected)


def test_noise_is_unbiased() -> None:
    torch.manual_seed(0)
    true_N = torch.randn(200, dtype=torch.float64)
    readings = []
    for _ in range(3000):
        gradient_WN = true_N + 2 * torch.randn(5, 200, dtype=torch.float64)
        readings.append(torch.stack(noise(gradient_WN.square().sum(1), mean_square(gradient_WN))))
    signal, trace = torch.stack(readings).mean(0)
    assert signal == pytest.approx(true_N.square().sum().item(), rel=0.02)
    assert trace == pytest.approx(200 * 2**2, rel=0.02)


def test_one_worker_knows_nothing_about_agreement() -> None:
    gram_WW = torch.full((1, 1), 4.0, dtype=torch.float64)
    square_W = gram_WW.diagonal()
    unknown = [
        leave_one_out(gram_WW),
        mean_pairwise(gram_WW),
        weighted_mean_cosine(square_W, 4.0),
        *noise(square_W, 3.9),
    ]
    assert all(value.isnan().all() for value in unknown)
    assert torch.equal(shift_to_mean(gram_WW, 4.0), gram_WW)
    assert torch.equal(likeliest(gram_WW * 1.1, square_W), gram_WW)


def test_nan_goes_through() -> None:
    square_W = torch.tensor([1.0, math.nan])
    assert weighted_mean_cosine(square_W, 1.0).isnan()
    assert all(value.isnan() for value in noise(square_W, 1.0))
    assert all(value.isnan() for value in noise(torch.ones(2), math.nan))
    assert weighted_mean_cosine(torch.zeros(3), 0.0).isnan()
