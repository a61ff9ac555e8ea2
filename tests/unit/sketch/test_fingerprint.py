"""Fingerprints in C and in torch against a slow one in plain Python that follows the definition."""

from __future__ import annotations

import hashlib
import math
import struct
import subprocess
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from unisono.sketch import native
from unisono.sketch.fingerprint import (
    digest,
    fingerprint,
    projections,
    rows,
    sample,
)
from unisono.sketch.fingerprint import (
    exact as _exact,
)
from unisono.sketch.fingerprint import (
    memory as _memory,
)

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.complex32, torch.complex64, torch.complex128,
]  # fmt: skip

BACKENDS = ["native", "torch", "pending"]


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    """`pending` is how tensors on a device are handled, here on the CPU."""
    use(request.param, monkeypatch)
    return request.param


def use(name, monkeypatch):
    if name == "native":
        if native.FINGERPRINT is None:
            pytest.skip("the native code is not there")
        return
    monkeypatch.setattr(native, "FINGERPRINT", None)
    if name == "pending":
        monkeypatch.setattr(_exact, "_at_hand", lambda tensor: False)


def printed(tensors, seed=0) -> int:
    return int(fingerprint(tensors, seed))


# The definition once more, by other means: bytes from lists of values, Python's integers.


def mix(state):
    state = (state + GOLDEN) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def factor(name, index):
    seed = int.from_bytes(name.encode(), "big")
    return 1 if index == 0 else mix(seed + index * GOLDEN) | 1


def slow_hash(data: bytes, form: str) -> int:
    data += bytes(-len(data) % 4)
    words = struct.unpack(f"<{len(data) // 4}i", data)
    total = sum(
        word * factor("column", at % 65_536) * factor("row", at // 65_536) for at, word in enumerate(words) if word
    )
    return total + int.from_bytes(hashlib.blake2b(form.encode(), digest_size=8).digest(), "little")


def slow_list(hashes, seed=0) -> int:
    chained = sum(mix(found + place * GOLDEN) for place, found in enumerate(hashes)) + mix(seed)
    return int.from_bytes((chained & MASK).to_bytes(8, "little"), "little", signed=True)


def floats(values, shape) -> tuple[Tensor, int]:
    """A float32 tensor and its slow hash."""
    tensor = torch.tensor(values, dtype=torch.float32).reshape(shape)
    return tensor, slow_hash(struct.pack(f"<{len(values)}f", *values), f"torch.float32 torch.strided {tuple(shape)}")


FLOATS = st.lists(st.floats(width=32, allow_nan=False), max_size=20)


@pytest.mark.parametrize("name", BACKENDS)
@given(values=st.lists(FLOATS, max_size=4), seed=st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=25, deadline=None)
def test_definition(name, values, seed):
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(name, monkeypatch)
        pairs = [floats(each, (len(each),)) for each in values]
        assert printed([tensor for tensor, _ in pairs], seed) == slow_list([found for _, found in pairs], seed)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 3, 1), (0,), (3, 0)])
def test_definition_of_shapes(backend, shape):
    tensor, found = floats([1.5 + i for i in range(math.prod(shape))], shape)
    assert printed([tensor]) == slow_list([found])


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 131_072, 131_073, 200_000])
def test_definition_of_long_tensors(backend, count):
    values = [0] * count
    for at in (0, 1, 255, 256, 65_534, 65_535, 65_536, 131_071, 131_072, count - 1):
        if at < count:
            values[at] = -7 - at
    found = slow_hash(struct.pack(f"<{count}i", *values), f"torch.int32 torch.strided ({count},)")
    assert printed([torch.tensor(values, dtype=torch.int32)]) == slow_list([found])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 262_143, 262_144, 262_145, 262_147])
def test_definition_of_bytes(backend, count):
    data = bytes(i * i % 251 for i in range(count))
    found = slow_hash(data, f"torch.uint8 torch.strided ({count},)")
    assert printed([torch.frombuffer(bytearray(data), dtype=torch.uint8)]) == slow_list([found])


def test_none_and_nothing(backend):
    tensor, found = floats([1.0], (1,))
    none = int.from_bytes(b"none", "big")
    assert printed([None, tensor, None]) == slow_list([none, found, none])
    assert printed([]) == slow_list([])
    assert len({printed(tensors) for tensors in ([], [None], [None, None], [torch.zeros(0)], [torch.zeros(1)])}) == 5


def test_pinned_numbers(backend):
    """Numbers in run files of one version are compared with those of the next."""
    assert printed([]) == -2152535657050944081
    assert printed([torch.arange(100_000, dtype=torch.float32).reshape(100, 1000), None], 3) == -4758028001457479568


def test_numbers_are_signed_and_plain():
    found = [fingerprint([torch.tensor(float(i))]) for i in range(100)]
    assert {type(each) for each in found} == {int}
    assert min(found) < 0 < max(found)
    assert all(-(2**63) <= each < 2**63 for each in found)


def example(dtype: torch.dtype, count: int, seed: int = 0) -> Tensor:
    """Random bits, NaNs and all."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8).view(dtype)


def in_all(tensors, monkeypatch) -> int:
    """In all ways that there are here."""
    ours = printed(tensors)
    for name in ("torch", "pending"):
        with monkeypatch.context() as patch:
            use(name, patch)
            assert printed(tensors) == ours
    return ours


COUNTS = [0, 1, 2, 3, 7, 1000, 65_536, 131_071, 131_075, 300_001]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_ways_agree(dtype, monkeypatch):
    """Three of the lengths with each type, so that every length comes with several."""
    if native.FINGERPRINT is None:
        pytest.skip("the native code is not there")
    for turn in (0, 3, 7):
        in_all([example(dtype, COUNTS[(DTYPES.index(dtype) + turn) % len(COUNTS)])], monkeypatch)


@pytest.mark.parametrize(
    ("dtype", "begin"),
    [(torch.uint8, 1), (torch.uint8, 2), (torch.float16, 1), (torch.float32, 3), (torch.complex128, 5)],
)
def test_any_alignment(dtype, begin, monkeypatch):
    tensor = example(dtype, 150_000)
    for count in (8, 66_001, 140_000):
        part = tensor[begin : begin + count]
        assert in_all([part], monkeypatch) == in_all([part.clone()], monkeypatch)


def test_memory_that_begins_at_an_odd_address(monkeypatch):
    data = bytearray(example(torch.uint8, 4001).tolist())
    odd = torch.frombuffer(data, dtype=torch.float32, offset=1)
    assert in_all([odd], monkeypatch) == in_all([odd.clone()], monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.complex64])
def test_logical_order_counts_not_memory(dtype, monkeypatch):
    tensor = example(dtype, 4 * 3 * 6 * 5).reshape(4, 3, 6, 5)
    expected = in_all([tensor], monkeypatch)
    assert in_all([tensor.to(memory_format=torch.channels_last)], monkeypatch) == expected
    assert in_all([tensor.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)], monkeypatch) == expected
    wide = torch.zeros(4, 3, 6, 10, dtype=dtype)
    wide[..., ::2] = tensor
    assert in_all([wide[..., ::2]], monkeypatch) == expected


def test_expanded_tensors(monkeypatch):
    one = torch.tensor([[3.0]])
    assert in_all([one.expand(7, 9)], monkeypatch) == in_all([torch.full((7, 9), 3.0)], monkeypatch)


def test_the_only_element_of_a_slice(monkeypatch):
    """It may keep any stride."""
    part = torch.arange(10, dtype=torch.bfloat16)[::5][1:]
    assert part.stride() == (5,)
    assert in_all([part], monkeypatch) == in_all([torch.tensor([5], dtype=torch.bfloat16)], monkeypatch)


def test_conjugate_and_negative_views(monkeypatch):
    tensor = torch.randn(50, dtype=torch.complex64)
    lazy = tensor.conj()
    assert in_all([lazy], monkeypatch) == in_all([lazy.resolve_conj()], monkeypatch) != in_all([tensor], monkeypatch)
    assert lazy.imag.is_neg()
    assert in_all([lazy.imag], monkeypatch) == in_all([lazy.imag.resolve_neg().clone()], monkeypatch)
    real = torch.randn(50)
    assert in_all([torch._neg_view(real)], monkeypatch) == in_all([-real], monkeypatch)


def test_parameters_and_subclasses(monkeypatch):
    class Kept(Tensor):
        pass

    tensor = torch.randn(5, 7)
    expected = in_all([tensor], monkeypatch)
    assert in_all([nn.Parameter(tensor)], monkeypatch) == expected
    assert in_all([tensor.as_subclass(Kept)], monkeypatch) == expected
    assert type(_memory.dense_of(tensor.as_subclass(Kept))) is Tensor, "native code would not read it"
    assert in_all([tensor.clone().requires_grad_() * 1], monkeypatch) == expected


class Wrapped(Tensor):
    """A subclass without memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda wrapped: wrapped.inner, (args, kwargs or {}))
        return tree_map_only(Tensor, cls, function(*args, **kwargs))


def test_a_subclass_without_memory_of_its_own():
    tensor = torch.randn(70_000)
    assert Wrapped(tensor).data_ptr() == 0
    assert printed([Wrapped(tensor)]) == printed([tensor])


def sparse(order=(0, 1, 2), value=3.0) -> Tensor:
    indices = torch.tensor([[0, 2, 0], [1, 0, 1]])[:, list(order)]
    return torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, value])[list(order)], (3, 4))


def test_sparse_tensors(monkeypatch):
    tensor = sparse()
    expected = in_all([tensor], monkeypatch)
    assert not tensor.is_coalesced()
    assert in_all([sparse((1, 2, 0))], monkeypatch) == expected
    assert in_all([tensor.coalesce()], monkeypatch) == expected
    others = [sparse(value=4.0), tensor.to_dense(), torch.sparse_coo_tensor(size=(3, 4)), tensor.to_sparse_csr()]
    assert len({expected, *(in_all([other], monkeypatch) for other in others)}) == 5


BITS = st.integers(0, 8 * 4 * 70_000 - 1)


@pytest.mark.parametrize("name", BACKENDS)
@given(bit=BITS)
@settings(max_examples=25, deadline=None)
def test_any_bit_counts(name, bit):
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(name, monkeypatch)
        tensor = torch.zeros(70_000)
        before = printed([tensor])
        tensor.view(torch.uint8)[bit // 8] ^= 1 << bit % 8
        assert printed([tensor]) != before


@pytest.mark.parametrize("count", [1, 3, 4, 6, 9])
def test_every_bit_of_small_tensors_counts(backend, count):
    tensor = example(torch.uint8, count)
    found = {printed([tensor])}
    for bit in range(8 * count):
        tensor[bit // 8] ^= 1 << bit % 8
        found.add(printed([tensor]))
        tensor[bit // 8] ^= 1 << bit % 8
    assert len(found) == 8 * count + 1


def test_order_counts(backend):
    tensor = torch.randn(3 * 65_536 + 100)
    whole = 65_536 * torch.arange(3)
    changed = [tensor]
    for one, other in [(0, 1), (10, 65_535), (5, 65_541), (65_536, 131_072), (0, 196_700)]:
        swapped = tensor.clone()
        swapped[one], swapped[other] = tensor[other], tensor[one]
        changed.append(swapped)
    turned = tensor.clone()
    turned[: 3 * 65_536] = tensor[whole[0] : whole[2] + 65_536].reshape(3, 65_536).roll(1, 0).flatten()
    assert len({printed([each]) for each in [*changed, turned, tensor.flip(0)]}) == 8


def test_order_of_tensors_and_their_borders_count(backend):
    one, two = torch.randn(10), torch.randn(10)
    lists = [[one, two], [two, one], [torch.cat([one, two])], [one, None, two], [one, two, None], [one], [two]]
    lists += [[one[:4], torch.cat([one[4:], two])]]
    assert len({printed(tensors) for tensors in lists}) == len(lists)


def test_type_and_shape_count(backend):
    zeros = [torch.zeros(4, dtype=dtype) for dtype in DTYPES]
    zeros += [torch.zeros(shape) for shape in [(2, 2), (4, 1), (1, 4), (5,), (0,), (0, 4), ()]]
    assert len({printed([tensor]) for tensor in zeros}) == len(zeros)


def test_seeds_count(backend):
    tensor = torch.randn(10)
    assert len({printed([tensor], seed) for seed in range(-20, 20)}) == 40


def test_zeros_of_either_sign_and_kinds_of_nan_differ(backend):
    bits = [0x00000000, -0x80000000, 0x7FC00000, 0x7FC00001, -0x00400000]
    found = {printed([torch.tensor([word], dtype=torch.int32).view(torch.float32)]) for word in bits}
    assert len(found) == len(bits)


def test_signs_flipped_in_pairs_count(backend):
    """Differences in the highest bit alone have the fewest bits left to show in."""
    tensor = torch.ones(400)
    found = set()
    for one in range(0, 400, 7):
        for other in range(one + 1, 400, 11):
            tensor[[one, other]] = -1
            found.add(printed([tensor]))
            tensor[[one, other]] = 1
    expected = sum(len(range(one + 1, 400, 11)) for one in range(0, 400, 7))
    assert len(found) == expected


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_any_mode(mode, backend):
    tensor = torch.arange(100_000.0, requires_grad=True)
    expected = printed([tensor.detach()])
    with mode():
        assert printed([tensor]) == expected
        assert printed([torch.arange(100_000.0)]) == expected
    assert tensor.grad is None


def test_factors_made_in_inference_mode_serve_later(backend):
    for cache in (_exact._odd, _exact._halves):
        cache.cache_clear()
    with torch.inference_mode():
        expected = printed([torch.arange(100_000.0)])
    assert printed([torch.arange(100_000.0, requires_grad=True)]) == expected


def test_default_device_and_dtype_do_not_matter(backend):
    tensor = torch.arange(100_000, dtype=torch.float32)
    expected = printed([tensor]), projections(tensor, 1), sample(tensor).tolist()
    for cache in (_exact._odd, _exact._halves):
        cache.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = printed([tensor]), projections(tensor, 1), sample(tensor).tolist()
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == expected


def test_several_threads_at_once():
    tensor = torch.randn(300_000)
    expected, found = printed([tensor]), []
    threads = [threading.Thread(target=lambda: found.append(printed([tensor]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_nothing_is_changed(backend):
    tensor = torch.randn(6, 5).t()
    before = tensor.clone(), tensor._version
    printed([tensor]), projections(tensor, 0), sample(tensor), digest([tensor]), rows(tensor)
    assert tensor.equal(before[0])
    assert tensor._version == before[1]


def test_many_at_once(backend):
    """Long ones among short ones, more short ones than are summed together, and sparse ones."""
    lengths = [70_000, 1, 3, 0, 65_536, 65_537, 5, 200_000, *[60_000] * 20, 7]
    tensors = [torch.arange(length, dtype=torch.int32) + place for place, length in enumerate(lengths)]
    tensors[2:2] = [None, sparse(), torch.tensor([1, 2, 3], dtype=torch.uint8)]
    found = printed(tensors, 5)
    single = [printed([None] * place + [tensor] + [None]) for place, tensor in enumerate(tensors)]
    none = [printed([None] * (place + 2)) for place, _ in enumerate(tensors)]
    # A list's number is a sum over its places: from a list of nothing, each tensor takes what lies between.
    total = printed([None] * len(tensors), 5) + sum(one - other for one, other in zip(single, none, strict=True))
    assert (found - total) % 2**64 == 0


def test_short_tensors_are_summed_together_wherever_they_stand(monkeypatch):
    sizes = []
    original = _exact._sums
    monkeypatch.setattr(_exact, "_at_hand", lambda tensor: False)
    monkeypatch.setattr(_exact, "_sums", lambda batch: sizes.append(len(batch)) or original(batch))
    fingerprint([torch.zeros(length) for length in (5, 70_000, 6, 80_000, 7)])
    assert sizes == [3, 1, 1]


def test_a_library_that_lacks_functions_is_not_used_at_all(tmp_path):
    names = [f"unisono_{work}_{kind}" for work in ("fold", "square") for kind in ("f32", "bf16", "f16")]
    source, library = tmp_path / "old.c", tmp_path / "old.so"
    source.write_text("".join(f"double {name}(void) {{ return 0; }}\n" for name in names))
    try:
        subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no compiler")
    assert native.load_fingerprint(library) is None
    assert native.load(library) == {}
    assert native.load_fingerprint(tmp_path / "none.so") is None


def test_native_code_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("UNISONO_NATIVE", "off")
    assert native.load_fingerprint() is None


# Projections


def test_projections_follow_their_definition():
    values = [1.5, -2.25, 3.0, 1e10, -0.5, 7.0]
    start = mix(5 ^ int.from_bytes(b"sign", "big"))
    words = [mix(start + place * GOLDEN) for place in range(len(values))]
    expected = [
        sum(-value if word >> number & 1 else value for value, word in zip(values, words, strict=True))
        for number in range(6)
    ]
    tensor = torch.tensor(values, dtype=torch.float64)
    assert list(projections(tensor, 5, 6)) == expected
    assert projections(tensor.reshape(2, 3), 5) == tuple(expected[:4])
    assert projections(tensor.reshape(3, 2).t().contiguous().t(), 5) == tuple(expected[:4])


@pytest.mark.parametrize("at", [0, 2_999_999])
def test_projections_see_one_last_bit(at):
    tensor = torch.randn(3_000_000, generator=torch.Generator().manual_seed(1))
    before = projections(tensor, 0)
    tensor[at] = torch.nextafter(tensor[at], torch.tensor(torch.inf))
    assert all(one != other for one, other in zip(before, projections(tensor, 0), strict=True))


def test_projections_tell_the_distance():
    one = torch.randn(300_000, generator=torch.Generator().manual_seed(1))
    other = one + 1e-4 * torch.randn(300_000, generator=torch.Generator().manual_seed(2))
    differences = [a - b for a, b in zip(projections(one, 9, 64), projections(other, 9, 64), strict=True)]
    square = sum(difference**2 for difference in differences) / 64
    assert math.sqrt(square) == pytest.approx((one.double() - other.double()).norm().item(), rel=0.35)


def test_signs_do_not_repeat():
    """Not from one million elements to the next either."""
    tensor, found = torch.zeros(2**21 + 1), set()
    for at in (0, 1, 2**16, 2**20, 2**21):
        tensor[at] = 1
        found.add(projections(tensor, 3, 16))
        tensor[at] = 0
    assert len(found) == 5


def test_projections_depend_on_the_seed():
    tensor = torch.randn(1000)
    assert len({projections(tensor, seed, 1) for seed in range(20)}) == 20


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != torch.complex32])
def test_projections_of_any_type(dtype):
    tensor = torch.arange(1, 9).to(dtype)
    wide = [complex(i) for i in range(1, 9)] if dtype.is_complex else [float(v) for v in tensor.tolist()]
    real = torch.tensor(wide, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    assert projections(tensor, 3) == projections(real, 3)


def test_projections_of_little():
    assert projections(torch.zeros(0), 1) == (0.0,) * 4
    assert [abs(each) for each in projections(torch.tensor(2.0), 1)] == [2.0] * 4
    assert math.isnan(projections(torch.tensor([1.0, torch.nan]), 1, 1)[0])


def test_complex_numbers_count_in_all_parts():
    tensor = torch.randn(100, dtype=torch.complex64)
    assert projections(tensor, 3) == projections(torch.view_as_real(tensor), 3)
    assert projections(tensor.conj(), 3) == projections(torch.view_as_real(tensor.conj().resolve_conj()), 3)


# Samples of batches


@given(count=st.integers(0, 5000), most=st.integers(1, 600))
@settings(deadline=None)
def test_samples_are_spread_evenly(count, most):
    found = sample(torch.arange(count), most)
    assert len(found) <= most
    steps = set(found.diff().tolist())
    assert len(steps) <= 1
    assert all(step % 2 for step in steps)
    if count:
        step = (steps or {count}).pop()
        assert found[0] == 0
        assert found[-1] + step >= count
        assert len(found) == count if count <= most else len(found) >= most // 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_of_any_type(dtype):
    tensor = example(dtype, 120).reshape(10, 12)
    expected = tensor.flatten().view(torch.uint8).reshape(120, -1)[::5]
    for each in (tensor, tensor.t().contiguous().t()):
        found = sample(each, 24)
        assert found.dtype == dtype
        assert found.view(torch.uint8).tolist() == expected.flatten().tolist()


def test_samples_are_copies():
    tensor = torch.zeros(100)
    for found in (sample(tensor, 10), sample(tensor)):
        tensor += 1
        assert found.sum() == found[0] * len(found) != tensor[0] * len(found)


def test_samples_of_unusual_tensors():
    assert sample(torch.tensor(3.0)).tolist() == [3.0]
    assert sample(torch.zeros(0, 4)).tolist() == []
    assert sample(sparse()).tolist() == [4.0, 2.0]
    assert sample(nn.Parameter(torch.ones(2))).requires_grad is False
    assert sample(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]


def test_samples_do_not_copy_the_whole():
    """No more is allocated for a view of 40 MB than its sample takes."""
    tensor = torch.zeros(1000, 10_000).t()
    with torch.profiler.profile(profile_memory=True) as profile:
        sample(tensor)
    assert sum(max(0, event.self_cpu_memory_usage) for event in profile.events()) < 1_000_000


def test_torch_needs_little_memory(monkeypatch):
    monkeypatch.setattr(native, "FINGERPRINT", None)
    tensor = torch.zeros(10_000_000)
    with torch.profiler.profile(profile_memory=True) as profile:
        fingerprint([tensor])
        projections(tensor, 0)
    assert max(event.self_cpu_memory_usage for event in profile.events()) <= 32 << 20


# Digests and rows


def test_digest_follows_its_definition():
    data = b"torch.int16 (2, 2);" + struct.pack("<4h", 1, 2, 3, -4) + b"torch.float32 ();" + struct.pack("<f", 0.5)
    expected = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)
    parts = [torch.tensor([[1, 2], [3, -4]], dtype=torch.int16), torch.tensor(0.5)]
    assert digest(parts) == expected
    assert digest([parts[0].t().contiguous().t(), parts[1]]) == expected


def test_digests_differ():
    lists = [[], [torch.zeros(0)], [torch.zeros(1)], [torch.zeros(1, 1)], [-torch.zeros(1)], [torch.zeros(1).int()]]
    lists += [[torch.zeros(1)] * 2, [torch.zeros(2)], [torch.ones(1), torch.zeros(1)], [torch.zeros(1), torch.ones(1)]]
    assert len({digest(parts) for parts in lists}) == len(lists)


def test_rows():
    tensor = torch.arange(12.0).reshape(6, 2)
    assert rows(tensor) == 6
    assert rows(tensor[[0, 1, 0, 0, 1]]) == 2
    assert rows(tensor.repeat(2, 1), most=3) == 3
    assert rows(tensor.t()) == 2
    assert rows(torch.zeros(5, 3, 2)) == 1
    assert rows(torch.zeros(0, 3)) == 0
    assert rows(torch.zeros(4, 0)) == 1
    assert rows(torch.tensor(1.0)) == 1
    assert rows(torch.tensor([1, 2, 1])) == 2
    assert rows(torch.arange(100)) == 64


# On a device


@pytest.fixture
def device():
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    fingerprint([torch.zeros(1 << 22, device="cuda")])
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def unsynchronised(device):
    torch.cuda.set_sync_debug_mode("error")
    yield device
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 3, 65_537, 300_001])
def test_same_on_a_device(device, dtype, count):
    tensor = example(dtype, count)
    assert printed([tensor.to(device), None]) == printed([tensor, None])
    if count:
        assert printed([tensor.to(device)[1:]]) == printed([tensor[1:]])
        assert sample(tensor.to(device)).shape == sample(tensor).shape


def test_large_and_odd_ones_on_a_device(device):
    tensor = torch.randn(3000, 5001)
    assert printed([tensor.to(device).t(), sparse().to(device)]) == printed([tensor.t(), sparse()])
    assert printed([torch.ones(2), tensor.to(device), tensor]) == printed([torch.ones(2), tensor, tensor])
    ours = projections(tensor.to(device), 3)
    assert ours.is_cuda
    assert ours.tolist() == pytest.approx(projections(tensor, 3), rel=1e-9, abs=1e-6)


def test_nobody_waits_for_a_device(unsynchronised):
    tensors = [torch.ones(300_000, device=unsynchronised), torch.ones(3, device=unsynchronised).bfloat16(), None]
    found, taken = fingerprint([*tensors, torch.ones(1)]), sample(tensors[0])
    shift = projections(tensors[0], 1)
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert isinstance(found, Tensor)
    assert found.shape == shift.shape[1:] == ()
    assert found.dtype == torch.int64
    assert taken.is_pinned()
    assert taken.tolist() == [1.0] * len(taken)
