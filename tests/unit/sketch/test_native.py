"""The fold in C against the reference in torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from unisono.sketch import Fold, squared_norm, window_seed
from unisono.sketch import native as in_c
from unisono.sketch.native import KERNELS, LIBRARY, Kernel, available, kernel_for, load, parts_for

DTYPES = [torch.float32, torch.bfloat16, torch.float16]

if not available():
    built = f"UNISONO_NATIVE={os.environ.get('UNISONO_NATIVE')}" if LIBRARY.exists() else "no compiler built it"
    pytest.skip(f"the native fold is not there: {built}", allow_module_level=True)


def both(
    gradient: Tensor, length: int, seed: int = 7, start: int = 0, elements: int | None = None
) -> tuple[Tensor, Tensor, float, float]:
    """Native and reference accumulator, native and reference squared norm."""
    count = start + gradient.numel() if elements is None else elements
    results = []
    for native in (True, False):
        accumulator = torch.full((2 * length,), 0.25)
        fold = Fold(["layer.weight"], [count], length, "cpu", seed, native)
        results.append((accumulator, fold.measure(0, gradient, fold.target(accumulator), start)))
    (ours, square), (reference, reference_square) = results
    assert isinstance(square, float)
    assert isinstance(reference_square, Tensor), "the reference was not asked"
    return ours, reference, square, reference_square.item()


def check(gradient: Tensor, length: int, seed: int = 7, start: int = 0, elements: int | None = None) -> None:
    ours, reference, square, reference_square = both(gradient, length, seed, start, elements)
    largest = gradient.float().abs().max().item() * (gradient.numel() // length + 1) + 0.25
    assert (ours - reference).abs().max() <= 4 * torch.finfo(torch.float32).eps * largest
    assert square == pytest.approx(reference_square, rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 127, 128, 129, 1000, 65_535, 65_536, 65_537, 200_000])
def test_any_number_of_elements(dtype: torch.dtype, count: int) -> None:
    for length in (1024, 4096, 65_536):
        check(torch.randn(count).to(dtype), length)


@pytest.mark.parametrize("seed", [0, 1, window_seed(64), 2**32 - 1])
@pytest.mark.parametrize("shape", [(), (3, 5), (70, 1, 999), (2, 3, 4, 5)])
def test_any_seed_and_shape(seed: int, shape: tuple[int, ...]) -> None:
    check(torch.randn(shape), 1024, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("start", [1, 15, 16, 127, 1000, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("count", [1, 30, 1024, 2500])
def test_parts_of_a_parameter(dtype: torch.dtype, start: int, count: int) -> None:
    check(torch.randn(count).to(dtype), 1024, start=start, elements=9000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("skip", [1, 3, 8])
def test_gradients_that_begin_anywhere_in_memory(dtype: torch.dtype, skip: int) -> None:
    check(torch.randn(5000).to(dtype)[skip:], 1024)


def test_accumulators_that_begin_anywhere_in_memory() -> None:
    gradient, memory = torch.randn(3000), torch.zeros(2049)
    fold = Fold(["w"], [3000], 1024, "cpu")
    fold.add(0, gradient, memory[1:])
    fold.add(0, gradient, memory[:-1].clone())
    expected = torch.zeros(2048)
    Fold(["w"], [3000], 1024, "cpu", native=False).add(0, gradient, expected)
    assert memory[0] == 0
    assert torch.allclose(memory[1:], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [1024, 65_536])
def test_nothing_is_written_past_the_ends(length: int) -> None:
    memory = torch.zeros(2 * length + 256)
    fold = Fold(["w"], [5 * length], length, "cpu", seed=3)
    fold.add(0, torch.ones(5 * length), memory[128:-128])
    assert not memory[:128].any()
    assert not memory[-128:].any()


def test_every_half_is_widened_exactly() -> None:
    halves = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    finite = halves[halves.isfinite()]
    ours, reference, _, _ = both(finite, 65_536)
    assert torch.equal(ours, reference)
    subnormal = torch.full((1000,), 2.0**-24, dtype=torch.float16)
    assert squared_norm(subnormal) == 1000 * 2.0**-48


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("at", [0, 1023, 1024, 2999])
def test_non_finite_numbers_pass_through(dtype: torch.dtype, poison: float, at: int) -> None:
    gradient = torch.randn(3000).to(dtype)
    gradient[at] = poison
    ours, reference, square, reference_square = both(gradient, 1024)
    assert torch.equal(ours.isnan(), reference.isnan())
    assert torch.equal(ours.isinf() * ours.sign(), reference.isinf() * reference.sign())
    assert str(square) == str(reference_square)
    assert str(squared_norm(gradient).item()) == str(square)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["normal", "constant", "lognormal"])
def test_squared_norms_of_millions_of_elements(dtype: torch.dtype, kind: str) -> None:
    torch.manual_seed(0)
    normal = torch.randn(4_000_000)
    kinds = {"normal": torch.clone, "constant": lambda x: torch.full_like(x, 0.1), "lognormal": torch.exp}
    gradient = kinds[kind](normal).to(dtype)
    assert (gradient.std() < 1e-3) == (kind == "constant")
    exact = sum(part.double().square().sum() for part in gradient.split(1 << 20))
    fold = Fold(["w"], [gradient.numel()], 65_536, "cpu")
    assert abs(fold.add(0, gradient, torch.zeros(2 * 65_536)) / exact - 1) < 2e-7
    assert abs(squared_norm(gradient) / exact - 1) < 2e-7


@pytest.fixture(scope="module")
def plain_kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[torch.dtype, Kernel]:
    """What other CPUs run, if this one has AVX-512."""
    library = tmp_path_factory.mktemp("plain") / "plain.so"
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("no C compiler")
    source = str(LIBRARY.with_name("fold.c"))
    flags = ["-DPLAIN", "-std=c11", "-O3", "-fPIC", "-shared", "-pthread"]
    subprocess.run([compiler, *flags, source, "-o", library], check=True)
    return load(library)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "start"), [(1, 0), (255, 300), (256, 0), (70_001, 1000)])
def test_without_avx512(plain_kernels, monkeypatch, dtype: torch.dtype, count: int, start: int) -> None:
    gradient = torch.randn(count).to(dtype)
    monkeypatch.setattr(in_c, "KERNELS", plain_kernels)
    check(gradient, 1024, start=start)
    assert squared_norm(gradient) == pytest.approx(gradient.double().square().sum().item(), rel=1e-6)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three threads, also for few numbers."""
    monkeypatch.setattr(in_c, "_LEAST_PART", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "start"), [(2, 0), (3, 1020), (1024, 0), (1024, 1023), (5000, 0), (7000, 1500)])
def test_threads_give_the_same_numbers(in_parts, dtype: torch.dtype, count: int, start: int) -> None:
    assert parts_for(count) == min(count, 3)
    check(torch.randn(count).to(dtype), 1024, start=start, elements=9000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 3, 255, 257, 1000, 7000])
def test_threads_give_the_same_squares(in_parts, dtype: torch.dtype, count: int) -> None:
    whole = torch.randint(-9, 10, (count,)).to(dtype)
    assert squared_norm(whole) == whole.double().square().sum()


def test_which_thread_ends_first_does_not_matter(in_parts) -> None:
    gradient = torch.randn(3_000_000)
    results = []
    for _ in range(10):
        accumulator = torch.zeros(2048)
        square = Fold(["w"], [gradient.numel()], 1024, "cpu").add(0, gradient, accumulator)
        results.append((square.item(), accumulator))
    assert all(square == results[0][0] and torch.equal(sums, results[0][1]) for square, sums in results)


def test_only_large_gradients_and_threads_torch_may_use(monkeypatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert [parts_for(count) for count in (0, 8_000_000, 8_400_000, 10**9)] == [1, 1, 2, 4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert parts_for(10**9) == 1


def test_what_the_library_cannot_read_is_folded_all_the_same() -> None:
    matrix, number = torch.randn(60, 50), torch.randn(40, 30, dtype=torch.complex64)
    negative = number.conj().imag
    assert negative.is_neg()
    odd = [matrix.T, nn.Parameter(matrix), matrix.double(), matrix.to_sparse(), matrix[:, ::2], number, negative]
    assert [kernel_for(gradient) for gradient in odd] == [None] * len(odd)
    for gradient in odd:
        sketches = []
        for native in (True, False):
            accumulator = torch.zeros(2048)
            Fold(["w"], [4000], 1024, "cpu", 7, native).add(0, gradient, accumulator)
            sketches.append(accumulator)
        assert torch.allclose(*sketches, rtol=1e-5, atol=1e-5)
        assert squared_norm(gradient) == pytest.approx(gradient.to_dense().abs().double().square().sum().item())


def test_accumulators_of_the_wrong_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"should have 2048 elements\. Found shape \(1024,\)"):
        Fold(["w"], [10], 1024, "cpu").add(0, torch.ones(10), torch.zeros(1024))


def test_float64_accumulators_are_left_to_torch() -> None:
    fold = Fold(["w"], [10], 1024, "cpu")
    assert fold.target(torch.zeros(2048, dtype=torch.float64)).address is None
    assert fold.target(torch.zeros(2048)).address is not None


def test_a_missing_or_foreign_library_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not a library")
    assert load(tmp_path / "missing.so") == {}
    assert load(tmp_path / "text.so") == {}
    assert load().keys() == KERNELS.keys()


def test_switched_off_by_the_environment() -> None:
    code = "from unisono.sketch.native import available; print(available())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"UNISONO_NATIVE": "off"}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr
