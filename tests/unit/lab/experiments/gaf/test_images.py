"""Images and labels as the experiment sees them."""

import numpy as np
import pytest
import torch
from PIL import Image

from unisono.common.errors import UserError
from unisono.lab.experiments.gaf.images import PADDING, cifar100, draw_epoch, generated, shown, wrong_labels
from unisono.lab.experiments.gaf.plan import RunPlan

PLAN = RunPlan(50, "averaging", None, 20, 2, seed=3, epochs=1)
LABEL_N = torch.arange(10).repeat(30)


@pytest.mark.parametrize("percent", [0, 5, 50, 90])
def test_exactly_that_share_of_labels_is_wrong(percent):
    true_N = torch.arange(10).repeat(100)
    label_N = wrong_labels(true_N, percent, 10, seed=1)
    assert int((label_N != true_N).sum()) == 10 * percent
    assert set(label_N.tolist()) <= set(range(10))


def test_wrong_labels_are_spread_over_all_other_classes_and_depend_on_the_seed():
    true_N = torch.zeros(9_000, dtype=torch.long)
    label_N = wrong_labels(true_N, 100, 10, seed=1)
    assert label_N.bincount(minlength=10)[0] == 0
    assert label_N.bincount(minlength=10)[1:].min() > 850
    assert not torch.equal(label_N, wrong_labels(true_N, 100, 10, seed=2))


def test_every_microbatch_holds_every_class_equally_often():
    draw = draw_epoch(LABEL_N, PLAN, 10, epoch=0)
    assert draw.index_SWB.shape == (7, 2, 20)
    for labels in LABEL_N[draw.index_SWB].flatten(0, 1):
        assert labels.bincount(minlength=10).tolist() == [2] * 10


def test_no_image_comes_twice_in_an_epoch():
    index = draw_epoch(LABEL_N, PLAN, 10, epoch=0).index_SWB.flatten()
    assert len(index.unique()) == len(index)


def test_a_class_with_few_labels_left_is_drawn_more_often():
    label_N = torch.cat([torch.zeros(5, dtype=torch.long), torch.ones(55, dtype=torch.long)])
    plan = RunPlan(50, "averaging", None, 2, 2, seed=0, epochs=1)
    labels = label_N[draw_epoch(label_N, plan, 2, epoch=0).index_SWB]
    assert int((labels == 0).sum()) == int((labels == 1).sum()) == 30


def test_draws_follow_from_seed_and_epoch():
    one = draw_epoch(LABEL_N, PLAN, 10, epoch=4)
    same, other = draw_epoch(LABEL_N, PLAN, 10, epoch=4), draw_epoch(LABEL_N, PLAN, 10, epoch=5)
    assert torch.equal(one.index_SWB, same.index_SWB)
    assert torch.equal(one.crop_SWB2, same.crop_SWB2)
    assert not torch.equal(one.index_SWB, other.index_SWB)
    assert not torch.equal(one.flip_SWB, other.flip_SWB)


def test_the_baseline_shuffles_without_regard_to_classes():
    plan = RunPlan(50, "averaging-128", None, 128, 1, seed=0, epochs=1)
    draw = draw_epoch(LABEL_N, plan, 10, epoch=0)
    assert draw.index_SWB.shape == (2, 1, 128)
    assert len(LABEL_N[draw.index_SWB[0, 0]].bincount(minlength=10).unique()) > 1


def test_images_are_cropped_and_flipped():
    side = 6
    pixels = torch.arange(2 * 3 * side * side, dtype=torch.uint8).view(2, 3, side, side)
    padded = torch.nn.functional.pad(pixels, [PADDING] * 4)
    index, crop = torch.tensor([1, 0]), torch.tensor([[4, 4], [0, 7]])
    straight = shown(padded, side, index, crop, torch.tensor([False, False]))
    assert torch.equal(straight[0], pixels[1])
    assert torch.equal(straight[1], padded[0, :, 0:6, 7:13])
    flipped = shown(padded, side, index, crop, torch.tensor([True, False]))
    assert torch.equal(flipped[0], pixels[1].flip(-1))
    assert torch.equal(flipped[1], straight[1])


def test_held_out_images_are_balanced_and_in_no_other_part():
    data = generated(classes=4, train=40)
    assert [len(part.label_N) for part in (data.train, data.tuning, data.validation)] == [80, 40, 40]
    assert all(part.label_N.bincount().unique().numel() == 1 for part in (data.train, data.tuning, data.validation))
    images = torch.cat([data.train.pixel_N3HH, data.tuning.pixel_N3HH, data.validation.pixel_N3HH])
    assert len(images.flatten(1).unique(dim=0)) == 160


def binary(path, each):
    records = torch.zeros(100 * each, 2 + 3 * 32 * 32, dtype=torch.uint8)
    records[:, 1] = torch.arange(100).repeat(each)
    records[:, 2 : 2 + 1024] = records[:, 1:2]
    path.write_bytes(records.numpy().tobytes())


def test_the_official_files_are_read(tmp_path):
    binary(tmp_path / "train.bin", each=51)
    binary(tmp_path / "test.bin", each=1)
    data = cifar100(tmp_path)
    assert [len(part.label_N) for part in (data.train, data.tuning, data.validation, data.test)] == [
        100,
        2500,
        2500,
        100,
    ]
    assert torch.equal(data.test.pixel_N3HH[:, 0, 31, 31].long(), data.test.label_N)
    assert not data.test.pixel_N3HH[:, 1:].any()


def test_mosaics_are_read(tmp_path):
    """A row of 50 images for each class; red tells the class, green the column, blue the row of pixels."""
    picture = np.zeros((3200, 1600, 3), dtype=np.uint8)
    picture[..., 0] = (np.arange(3200) // 32)[:, None]
    picture[..., 1] = (np.arange(1600) // 32)[None]
    picture[..., 2] = (np.arange(3200) % 32)[:, None]
    for name in ("train_00", "train_01", "test_00"):
        Image.fromarray(picture).save(tmp_path / f"{name}.webp", lossless=True, quality=0, method=0)
    data = cifar100(tmp_path)
    assert len(data.train.label_N) == 5_000
    assert torch.equal(data.test.pixel_N3HH[:, 0, 5, 7].long(), data.test.label_N)
    assert data.test.pixel_N3HH[:50, 1, 0, 0].tolist() == list(range(50))
    assert data.test.pixel_N3HH[3, 2, :, 9].tolist() == list(range(32))


def test_what_is_missing_or_cut_short_is_said(tmp_path):
    with pytest.raises(UserError, match=r"neither train\.bin nor train_\*\.webp"):
        cifar100(tmp_path)
    (tmp_path / "train.bin").write_bytes(b"short")
    with pytest.raises(UserError, match="Download it again"):
        cifar100(tmp_path)
