"""The definition of the sketch, against formulas written out element by element, and what must not change it."""

from __future__ import annotations

from hashlib import blake2s

import pytest
import torch
from torch import Tensor

from unisono.sketch import Fold, real_elements, window_seed, wrap
from unisono.sketch.hashing import mix32, parameter_key, slice_rotations

NAME = "transformer.h.0.attn.weight"
SEED = window_seed(0)


def whole_numbers(*shape: int) -> Tensor:
    """Small whole numbers: their sums are exact in any order, so that equal sketches are equal to the bit."""
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(1)).float()


def sketch(gradient: Tensor, length: int = 1024, seed: int = SEED, name: str = NAME) -> Tensor:
    accumulator = torch.zeros(2 * length)
    Fold([name], [real_elements(gradient)], length, "cpu", seed).add(0, gradient, accumulator)
    return wrap(accumulator)


def reference_mix(x: int) -> int:
    x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
    x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
    return x ^ (x >> 16)


def reference_sketch(values: list[float], length: int, seed: int, name: str) -> list[float]:
    key = int.from_bytes(blake2s(name.encode(), digest_size=4).digest(), "little")
    stream = {tag: reference_mix(seed ^ int.from_bytes(tag, "big")) for tag in (b"lane", b"slic", b"sign")}
    words = [reference_mix((stream[b"lane"] + s * 0x9E3779B9) % 2**32) for s in range(16)]
    lanes = sorted(range(16), key=words.__getitem__)
    steps = [reference_mix((stream[b"slic"] + s * 0x9E3779B9) % 2**32) >> 20 for s in range(16)]
    result = [0.0] * length
    for i, value in enumerate(values):
        r, c = divmod(i, length)
        h = reference_mix((reference_mix(key ^ seed) + r * 0x9E3779B9) % 2**32)
        s = (r + key) % 16
        rotation = 16 * (h >> 20) + 16 * steps[s] + lanes[s]
        entry = 16 * (h & 0x3FFF) + c
        bit = reference_mix((entry // 16 * 0x85EBCA6B + stream[b"sign"]) % 2**32) >> (entry % 16) & 1
        result[(c + rotation) % length] += value * (1 - 2 * bit) * (1 - 2 * (h >> 14 & 1))
    return result


@pytest.mark.parametrize("length", [1024, 4096, 65_536])
@pytest.mark.parametrize("seed", [0, SEED, 2**32 - 1])
def test_sketch_is_the_written_out_formula(length: int, seed: int) -> None:
    gradient = whole_numbers(2 * length + 37)
    expected = reference_sketch(gradient.tolist(), length, seed, NAME)
    assert sketch(gradient, length, seed).tolist() == expected


def test_golden_numbers() -> None:
    assert [mix32(1), mix32(0xDEADBEEF)] == [1753845952, 3861431939]
    assert [window_seed(0), window_seed(64), window_seed(2**40)] == [1055001178, 2086213714, 341015937]
    assert parameter_key(NAME) == 2704172787
    plan = Fold([NAME], [5000], 1024, "cpu", SEED).plans[0]
    assert plan.rotations == [70, 168, 356, 461, 329]
    assert plan.offsets == [91664, 106976, 126032, 68224, 201472]
    assert plan.signs == [-1, -1, 1, -1, 1]
    golden = sketch(torch.arange(5000.0) % 7 - 3)
    assert golden[:8].tolist() == [-2, 5, 4, 0, -4, -5, 4, 0]
    assert (golden * torch.arange(1, 1025)).sum() == -165537


def test_mix32_of_tensors_is_that_of_integers() -> None:
    words = [0, 1, 2**31, 2**32 - 1, 123456789]
    assert mix32(torch.tensor(words)).tolist() == [mix32(word) for word in words]


@pytest.mark.parametrize("start", range(20))
def test_slice_rotations_fill_every_lane(start: int) -> None:
    assert sorted((slice_rotations(window_seed(start)) % 16).tolist()) == list(range(16))


def test_sketch_is_linear() -> None:
    a, b = whole_numbers(5000), whole_numbers(5000).flip(0)
    assert torch.equal(sketch(a + 3 * b), sketch(a) + 3 * sketch(b))


def test_sketch_of_the_model_is_the_sum_over_groups() -> None:
    gradients = [whole_numbers(3000), whole_numbers(70)]
    fold = Fold(["a", "b"], [3000, 70], 1024, "cpu", SEED)
    apart_G2K, together_2K = torch.zeros(2, 2048), torch.zeros(2048)
    for i, gradient in enumerate(gradients):
        fold.add(i, gradient, apart_G2K[i])
        fold.add(i, gradient, together_2K)
    assert torch.equal(wrap(apart_G2K).sum(0), wrap(together_2K))


def test_order_of_parameters_does_not_matter() -> None:
    gradient = whole_numbers(5000)
    accumulator = torch.zeros(2048)
    Fold(["other", "empty", NAME], [7000, 0, 5000], 1024, "cpu", SEED).add(2, gradient, accumulator)
    assert torch.equal(wrap(accumulator), sketch(gradient))


def test_memory_layout_does_not_matter() -> None:
    image = whole_numbers(16, 12, 5, 5)
    matrix = whole_numbers(80, 60)
    assert torch.equal(sketch(image.contiguous(memory_format=torch.channels_last)), sketch(image))
    assert torch.equal(sketch(matrix.T.contiguous().T), sketch(matrix))
    assert torch.equal(sketch(matrix.repeat(1, 2)[:, :60]), sketch(matrix))


@pytest.mark.parametrize("skip", [0, 1, 7])
def test_place_in_a_bucket_does_not_matter(skip: int) -> None:
    gradient = whole_numbers(90, 50)
    bucket = torch.cat([torch.full((skip,), 99.0), gradient.flatten(), torch.full((5,), 99.0)])
    assert torch.equal(sketch(bucket[skip : skip + 4500].view(90, 50)), sketch(gradient))


@pytest.mark.parametrize("cuts", [[2500, 2500], [1, 1022, 1, 1024, 2952], [100] * 50])
def test_shards_add_up(cuts: list[int]) -> None:
    gradient = whole_numbers(5000)
    fold = Fold([NAME], [5000], 1024, "cpu", SEED)
    accumulator, start, square = torch.zeros(2048), 0, torch.zeros((), dtype=torch.float64)
    for shard in gradient.split(cuts):
        square += fold.add(0, shard, accumulator, start)
        start += len(shard)
    assert torch.equal(wrap(accumulator), sketch(gradient))
    assert square == gradient.square().sum()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtypes_give_the_same_sketch_and_norm(dtype: torch.dtype) -> None:
    gradient = whole_numbers(5000)
    accumulator = torch.zeros(2048)
    square = Fold([NAME], [5000], 1024, "cpu", SEED).add(0, gradient.to(dtype), accumulator)
    assert torch.equal(wrap(accumulator), sketch(gradient))
    assert square.dtype == torch.float64
    assert square.shape == ()
    assert square == gradient.square().sum()


def test_float64_keeps_what_float32_cannot_hold() -> None:
    gradient = torch.tensor([1.0, 1e-9], dtype=torch.float64)
    accumulator = torch.zeros(2048, dtype=torch.float64)
    square = Fold([NAME], [2], 1024, "cpu").add(0, gradient * 1e100, accumulator)
    assert square == (gradient * 1e100).square().sum()
    assert wrap(accumulator).abs().sum() == 1e100 + 1e91


def test_complex_is_pairs_of_reals() -> None:
    gradient = torch.complex(whole_numbers(30, 40), whole_numbers(40, 30).T)
    assert torch.equal(sketch(gradient), sketch(torch.view_as_real(gradient).flatten()))
    assert torch.equal(sketch(gradient.conj()), sketch(gradient.conj().resolve_conj()))


@pytest.mark.parametrize("dense_dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_sparse_equals_dense(dense_dim: int, dtype: torch.dtype) -> None:
    dense = (whole_numbers(60, 20, 5) * (whole_numbers(60, 1, 1) > 5)).to(dtype)
    doubled = torch.cat([dense.to_sparse(3 - dense_dim)] * 2, 0)
    uncoalesced = torch.sparse_coo_tensor(
        torch.cat([doubled.coalesce().indices()[:1] % 60, doubled.coalesce().indices()[1:]]),
        doubled.coalesce().values(),
        dense.shape,
        check_invariants=True,
    )
    fold = Fold([NAME], [real_elements(dense)], 1024, "cpu", SEED)
    accumulator = torch.zeros(2048)
    square = fold.add(0, uncoalesced, accumulator)
    assert torch.equal(wrap(accumulator), 2 * sketch(dense))
    assert square == 4 * dense.abs().double().square().sum().round()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 7)])
@pytest.mark.parametrize("native", [True, False])
def test_empty_gradients_are_silent(shape: tuple[int, ...], native: bool) -> None:
    fold = Fold([NAME], [0], 1024, "cpu", native=native)
    accumulator = torch.zeros(2048)
    assert fold.add(0, torch.zeros(shape), accumulator) == 0
    assert fold.add(0, torch.zeros(shape).to_sparse(), accumulator) == 0
    assert not accumulator.any()


def test_single_numbers() -> None:
    assert sketch(torch.tensor(-3.0)).abs().sum() == 3
    assert torch.equal(sketch(torch.tensor(-3.0)), sketch(torch.tensor([-3.0])))


def test_gradient_is_left_alone() -> None:
    gradient = whole_numbers(3000).to(torch.bfloat16).requires_grad_()
    before = gradient.detach().clone()
    sketch(gradient * 1)
    sketch(gradient)
    assert torch.equal(gradient, before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("start", [0, 1, 40_000, 65_535, 65_536, 140_000])
@pytest.mark.parametrize("length", [1024, 65_536])
def test_pieces_of_the_reference_do_not_matter(length: int, start: int, threads: int) -> None:
    """Two threads have shorter pieces than a row; one has longer ones than many rows."""
    gradient, before = whole_numbers(150_000), torch.get_num_threads()
    torch.set_num_threads(threads)
    fold = Fold([NAME], [start + 150_000], length, "cpu", SEED, native=False)
    with_gaps, element_by_element = torch.zeros(4 * length)[::2], torch.zeros(2 * length)
    square = fold.add(0, gradient, with_gaps, start)
    torch.set_num_threads(before)
    fold.add(0, gradient.to_sparse(), element_by_element, start)
    assert torch.equal(wrap(with_gaps), wrap(element_by_element))
    assert square == gradient.square().sum()


def test_seed_and_name_change_everything() -> None:
    gradient = torch.ones(1024)
    first = sketch(gradient)
    for other in (sketch(gradient, seed=window_seed(1)), sketch(gradient, name="lm_head.weight")):
        assert abs(first @ other) < 5 * 1024**0.5
        assert 400 < (first != other).sum() < 624


def test_reseed_is_a_new_fold() -> None:
    fold = Fold([NAME], [5000], 1024, "cpu", seed=5)
    fold.reseed(SEED)
    accumulator = torch.zeros(2048)
    fold.add(0, whole_numbers(5000), accumulator)
    assert torch.equal(wrap(accumulator), sketch(whole_numbers(5000)))


def test_non_finite_gradients_show_in_the_norm() -> None:
    fold = Fold([NAME], [2], 1024, "cpu")
    assert fold.add(0, torch.tensor([1.0, torch.nan]), torch.zeros(2048)).isnan()
    assert fold.add(0, torch.tensor([1.0, -torch.inf]), torch.zeros(2048)).isinf()


def test_too_long_a_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match=r"within its 10 real elements\. Found an end at 11"):
        Fold(["bias"], [10], 1024, "cpu").add(0, torch.ones(4), torch.zeros(2048), start=7)


@pytest.mark.parametrize("length", [0, 512, 1025, 131_072])
def test_odd_lengths_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"Found `length = {length}`"):
        Fold(["bias"], [10], length, "cpu")
