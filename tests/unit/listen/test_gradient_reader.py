"""Norms and sketches of one rank's gradients, against the same numbers worked out directly in float64."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn

from unisono.listen.gradient_buffers import HostReadout
from unisono.listen.gradient_reader import GradientReader
from unisono.sketch import Fold, default_length, window_seed, wrap


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "stem": nn.Linear(7, 5),
            "blocks": nn.ModuleList([nn.Linear(40, 30), nn.Linear(30, 40, bias=False)]),
            "norm": nn.LayerNorm(11),
        }
    )


@pytest.fixture
def reader(model):
    for seed, parameter in enumerate(model.parameters()):
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
    return GradientReader(list(model.named_parameters()))


def read(reader, window=0):
    """One whole reading."""
    assert reader.open(window)
    for index in range(len(reader.parameters)):
        reader.hear(index)
    readout, late = reader.close()
    assert late == 0
    return readout


def squares_directly(reader):
    """Of each group, in float64."""
    square_G = dict.fromkeys(reader.group_names, 0.0)
    for name, parameter in zip(reader.names, reader.parameters, strict=True):
        group = next(one for one in reader.group_names if name.startswith(f"{one}."))
        if parameter.grad is not None:
            square_G[group] += float(parameter.grad.double().square().sum())
    return tuple(square_G.values())


def sketch_directly(reader, window):
    """Of the whole model: the reference fold, written in torch."""
    numels = [parameter.numel() for parameter in reader.parameters]
    fold = Fold(reader.names, numels, reader.length, "cpu", window_seed(window), native=False)
    accumulator_2K = torch.zeros(2 * reader.length, dtype=torch.float64)
    for index, parameter in enumerate(reader.parameters):
        if parameter.grad is not None:
            fold.add(index, parameter.grad.double(), accumulator_2K)
    return wrap(accumulator_2K)


def test_squared_norms_are_those_of_the_gradients(reader):
    assert reader.group_names == ("stem", "blocks.0", "blocks.1", "norm")
    assert (reader.total, reader.length) == (sum(p.numel() for p in reader.parameters), default_length(reader.total))
    nonfinite, square_G = read(reader).squared_norms()
    assert nonfinite == 0
    assert square_G == pytest.approx(squares_directly(reader), rel=1e-7)


@pytest.mark.parametrize("window", [0, 32])
def test_sketches_are_the_fold_of_the_gradients_with_the_windows_seed(reader, window):
    sketch_GK = read(reader, window)._sketches()
    assert sketch_GK.shape == (4, reader.length)
    assert torch.allclose(sketch_GK.sum(0).double(), sketch_directly(reader, window), atol=1e-5)


def test_what_is_sent_is_the_sketch_rounded_and_unscaled(reader):
    sent = read(reader).directions(reader.layout, unscale=0.5)
    whole_WK = reader.layout.decode(sent[None], torch.tensor([True]))
    found_K = whole_WK.sketch_WK[0] * whole_WK.scale_W[0]
    expected_K = sketch_directly(reader, 0) / 2
    assert torch.allclose(found_K.double(), expected_K, atol=float(expected_K.abs().max()) / 100)


def test_one_window_has_one_seed(reader):
    first, again, other = (read(reader, window)._sketches() for window in (0, 0, 32))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert torch.equal(read(reader, 0)._sketches(), first)


def test_a_window_is_seeded_once(reader, monkeypatch):
    seeds = []
    reseed = reader._reading.reseed
    monkeypatch.setattr(reader._reading, "reseed", lambda seed: (seeds.append(seed), reseed(seed)))
    for window in (0, 0, 0, 32, 32):
        read(reader, window).discard()
    assert seeds == [window_seed(0), window_seed(32)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_are_read_as_they_are(dtype):
    weight = nn.Parameter(torch.zeros(300, dtype=dtype))
    weight.grad = torch.randn(300).to(dtype)
    reader = GradientReader([("weight", weight)])
    square = float(weight.grad.double().square().sum())
    assert read(reader).squared_norms() == (0, (pytest.approx(square, rel=1e-6),))


def test_complex_gradients_count_both_parts():
    weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    weight.grad = torch.tensor([3 + 4j, 0, 1j])
    reader = GradientReader([("weight", weight)])
    assert reader.total == 6
    assert read(reader).squared_norms()[1] == (pytest.approx(26),)


def test_parameters_without_a_gradient_count_nothing(reader):
    reader.parameters[0].grad = reader.parameters[3].grad = None
    readout = read(reader)
    assert readout.squared_norms()[1] == pytest.approx(squares_directly(reader))
    assert torch.allclose(readout._sketches().sum(0).double(), sketch_directly(reader, 0), atol=1e-5)


def test_what_was_not_heard_is_not_in_the_reading(reader):
    assert reader.open(0)
    reader.hear(0)
    readout, _ = reader.close()
    square = float(reader.parameters[0].grad.double().square().sum())
    assert readout.squared_norms()[1] == pytest.approx((square, 0, 0, 0))


def test_parameters_that_are_not_finite_are_counted(reader):
    reader.parameters[0].grad[0, 0] = math.nan
    reader.parameters[2].grad[0, 0] = math.inf
    nonfinite, square_G = read(reader).squared_norms()
    assert nonfinite == 2
    assert [math.isfinite(square) for square in square_G] == [False, False, True, True]


def test_readings_stay_apart(reader):
    first = read(reader)
    for parameter in reader.parameters:
        parameter.grad = 2 * parameter.grad
    second = read(reader)
    assert second.squared_norms()[1] == pytest.approx([4 * square for square in first.squared_norms()[1]])
    assert torch.allclose(second._sketches(), 2 * first._sketches())


def test_a_buffer_comes_back_empty(reader):
    expected = read(reader)._sketches().clone()
    for _ in range(100):  # more than there are buffers
        readout = read(reader)
        assert torch.equal(readout._sketches(), expected)
    assert readout.squared_norms()[1] == pytest.approx(squares_directly(reader))


def test_without_buffers_nothing_opens_until_one_comes_back(reader):
    kept = []
    while reader.open(0):
        reader.hear(0)
        kept.append(reader.close()[0])
    assert 3 <= len(kept) <= 64
    assert not reader.open(0)
    reader.hear(0)  # nobody takes note
    reader.abandon()
    assert not reader.open(0)
    kept[0].discard()
    kept[0].discard()
    readout = read(reader)
    assert readout.squared_norms()[1] == pytest.approx(squares_directly(reader))
    assert torch.allclose(readout._sketches().sum(0).double(), sketch_directly(reader, 0), atol=1e-5)
    # The others are what they were.
    assert kept[1].squared_norms()[1][0] == pytest.approx(float(reader.parameters[0].grad.double().square().sum()))


def test_an_abandoned_reading_leaves_nothing_in_its_buffer(reader):
    for _ in range(100):
        assert reader.open(0)
        reader.hear(0)
        reader.abandon()
    reader.abandon()
    assert torch.allclose(read(reader)._sketches().sum(0).double(), sketch_directly(reader, 0), atol=1e-5)


def test_a_reading_has_to_be_opened(reader):
    with pytest.raises(RuntimeError, match="opened before it is closed"):
        reader.close()
    read(reader)
    with pytest.raises(RuntimeError, match="opened before it is closed"):
        reader.close()


def test_a_reading_that_cannot_be_closed_gives_its_buffer_back(reader, monkeypatch):
    def fail(*args):
        raise ValueError("injected")

    with monkeypatch.context() as broken:
        broken.setattr(HostReadout, "__init__", fail)
        for _ in range(100):
            assert reader.open(0)
            with pytest.raises(ValueError, match="injected"):
                reader.close()
    assert read(reader).squared_norms()[1] == pytest.approx(squares_directly(reader))


def test_the_share_of_all_ranks_is_every_parameter_once(reader):
    for world in (1, 2, 3, 4, 7, 20):
        shares = [reader.share_of(rank, world) for rank in range(world)]
        assert sorted(index for share in shares for index in share) == list(range(len(reader.parameters)))


def test_shares_add_up_to_the_whole_norm(reader):
    shares = [reader.squared_norm_of(reader.share_of(rank, 3)) for rank in range(3)]
    assert sum(map(float, shares)) == pytest.approx(sum(squares_directly(reader)), rel=1e-6)
    assert float(reader.squared_norm_of([])) == 0


def test_a_share_without_gradients_is_nothing(reader):
    reader.parameters[1].grad = None
    square = float(reader.parameters[0].grad.double().square().sum())
    assert float(reader.squared_norm_of([0, 1])) == pytest.approx(square)


def test_released_it_opens_no_more(reader):
    assert reader.open(0)
    reader.release()
    assert not reader.open(0)
    assert reader.parameters == []


def test_readings_under_way_outlive_the_release(reader):
    expected = squares_directly(reader)
    readout = read(reader)
    reader.release()
    assert readout.squared_norms()[1] == pytest.approx(expected)
    assert torch.isfinite(readout._sketches()).all()


def test_a_released_reader_lets_parameters_and_gradients_go():
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    gone = weakref.ref(weight), weakref.ref(weight.grad)
    reader = GradientReader([("weight", weight)])
    read(reader)
    reader.release()
    del weight
    gc.collect()
    assert [one() for one in gone] == [None, None]
