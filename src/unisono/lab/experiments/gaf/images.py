"""CIFAR-100 from a folder, or generated images; wrong labels, class-balanced micro-batches, crops and flips.

N = images, C = classes, S = steps of an epoch, W = workers, B = images of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from unisono.common.errors import UserError
from unisono.lab.experiments.gaf.plan import RunPlan

PADDING = 4
HELD_OUT = 25
"""Images of each class left out of training: as many again for tuning as for validation."""

BINARY = {"train": "train.bin", "test": "test.bin"}
MOSAIC_ROWS, MOSAIC_COLUMNS, SIDE, CHANNELS = 100, 50, 32, 3


@dataclass(frozen=True)
class LabelledImages:
    pixel_N3HH: Tensor
    """uint8."""

    label_N: Tensor

    def subset(self, chosen_N: Tensor) -> LabelledImages:
        return LabelledImages(self.pixel_N3HH[chosen_N], self.label_N[chosen_N])

    def to(self, device: torch.device) -> LabelledImages:
        return LabelledImages(self.pixel_N3HH.to(device), self.label_N.to(device))


@dataclass(frozen=True)
class ImageData:
    classes: int
    train: LabelledImages
    """With true labels."""

    tuning: LabelledImages
    """Takes part in the choice of the learning rate and in nothing else."""

    validation: LabelledImages
    """Takes part in no decision."""

    test: LabelledImages

    def to(self, device: torch.device) -> ImageData:
        parts = (part.to(device) for part in (self.train, self.tuning, self.validation, self.test))
        return ImageData(self.classes, *parts)

    @cached_property
    def padded_train(self) -> Tensor:
        return functional.pad(self.train.pixel_N3HH, [PADDING] * 4)

    @cached_property
    def mean_and_deviation(self) -> tuple[Tensor, Tensor]:
        """Of the training pixels, by channel."""
        pixels = self.train.pixel_N3HH.float()
        return pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))


def cifar100(folder: Path) -> ImageData:
    """Raises UserError where the images are not there."""
    return _parted(_read(folder, "train"), _read(folder, "test"), classes=100, held_out=HELD_OUT)


def generated(classes: int = 10, train: int = 100, side: int = 16) -> ImageData:
    """Every class is a colour, its images are that colour in noise: wherever they are cropped.

    :param train: Images of each class, some of which are held out.
    """
    generator = torch.Generator().manual_seed(0)
    colour_C311 = torch.randn(classes, CHANNELS, 1, 1, generator=generator)

    def draw(each: int) -> LabelledImages:
        label_N = torch.arange(classes).repeat(each)
        noisy = colour_C311[label_N] + torch.randn(len(label_N), CHANNELS, side, side, generator=generator)
        return LabelledImages((128 + 32 * noisy).clamp(0, 255).to(torch.uint8), label_N)

    return _parted(draw(train), draw(20), classes, held_out=10)


def wrong_labels(true_N: Tensor, percent: int, classes: int, seed: int) -> Tensor:
    """Symmetric noise: that share of the labels, exactly, becomes one of the other classes."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(true_N), generator=generator)[: round(len(true_N) * percent / 100)]
    shift = torch.randint(1, classes, (len(chosen),), generator=generator)
    label_N = true_N.clone()
    label_N[chosen] = (true_N[chosen] + shift) % classes
    return label_N


@dataclass(frozen=True)
class EpochDraw:
    """Which images each micro-batch of an epoch gets, and how they are shown. The same for the same seed and epoch."""

    index_SWB: Tensor
    crop_SWB2: Tensor
    """Upper left corner in the padded image."""

    flip_SWB: Tensor

    def __len__(self) -> int:
        return len(self.index_SWB)


def draw_epoch(label_N: Tensor, plan: RunPlan, classes: int, epoch: int) -> EpochDraw:
    generator = torch.Generator().manual_seed(1_000_003 * (plan.seed + 1) + epoch)
    if plan.method == "averaging-128":
        order = torch.randperm(len(label_N), generator=generator)
    else:
        order = _class_balanced(label_N, plan.batch, classes, generator)
    steps = len(order) // plan.batch
    shape = (steps, plan.workers, plan.microbatch)
    return EpochDraw(
        order[: steps * plan.batch].view(shape),
        torch.randint(0, 2 * PADDING + 1, (*shape, 2), generator=generator),
        torch.rand(shape, generator=generator) < 0.5,
    )


def shown(padded_N3HH: Tensor, side: int, index_B: Tensor, crop_B2: Tensor, flip_B: Tensor) -> Tensor:
    """The images of a micro-batch, cropped and flipped."""
    along = torch.arange(side, device=index_B.device)
    row_BH = crop_B2[:, :1] + along
    column_BH = crop_B2[:, 1:] + torch.where(flip_B[:, None], along.flip(0), along)
    channel = torch.arange(padded_N3HH.shape[1], device=index_B.device)
    return padded_N3HH[
        index_B[:, None, None, None], channel[:, None, None], row_BH[:, None, :, None], column_BH[:, None, None, :]
    ]


def _class_balanced(label_N: Tensor, batch: int, classes: int, generator: torch.Generator) -> Tensor:
    """Every class as often as every other in each micro-batch, by the labels as training sees them."""
    each = len(label_N) // classes
    columns = []
    for label in range(classes):
        own = (label_N == label).nonzero().flatten()
        if not len(own):
            raise UserError(
                f"Every class should have images. Found none of class {label}. Use more images or less noise."
            )
        rounds = [own[torch.randperm(len(own), generator=generator)] for _ in range(-(-each // len(own)))]
        columns.append(torch.cat(rounds)[:each])
    return torch.stack(columns, dim=1).flatten()


def _parted(train: LabelledImages, test: LabelledImages, classes: int, held_out: int) -> ImageData:
    """The first images of each class are held out: the files are in no order that matters."""
    place_N = torch.empty_like(train.label_N)
    for label in range(classes):
        own = train.label_N == label
        place_N[own] = torch.arange(int(own.sum()))
    return ImageData(
        classes,
        train.subset(place_N >= 2 * held_out),
        train.subset(place_N < held_out),
        train.subset((place_N >= held_out) & (place_N < 2 * held_out)),
        test,
    )


def _read(folder: Path, part: str) -> LabelledImages:
    binary, mosaics = folder / BINARY[part], sorted(folder.glob(f"{part}_*.webp"))
    if binary.is_file():
        return _from_binary(binary)
    if mosaics:
        return _from_mosaics(mosaics)
    raise UserError(
        f"`--data` should be a folder with CIFAR-100. Found neither {BINARY[part]} nor {part}_*.webp in {folder}. "
        "The binary version is at https://www.cs.toronto.edu/~kriz/cifar.html"
    )


def _from_binary(path: Path) -> LabelledImages:
    """Each record: the coarse label, the fine label, and the pixels, channel by channel."""
    record = 2 + CHANNELS * SIDE * SIDE
    content = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    if len(content) == 0 or len(content) % record:
        raise UserError(f"{path} should hold records of {record:,} bytes. Found {len(content):,}. Download it again.")
    rows = content.view(-1, record)
    return LabelledImages(rows[:, 2:].reshape(-1, CHANNELS, SIDE, SIDE), rows[:, 1].long())


def _from_mosaics(paths: list[Path]) -> LabelledImages:
    """Each picture: a row of 50 images for each of the 100 classes."""
    try:
        import numpy as np
        from PIL import Image
    except ImportError:
        raise UserError("Mosaics are read with Pillow and numpy. Found none. Run: pip install pillow numpy") from None
    images = []
    for path in paths:
        picture = torch.from_numpy(np.array(Image.open(path).convert("RGB")))
        if picture.shape != (MOSAIC_ROWS * SIDE, MOSAIC_COLUMNS * SIDE, CHANNELS):
            raise UserError(f"{path} should be {MOSAIC_ROWS} rows of {MOSAIC_COLUMNS} images. Found {picture.shape}.")
        grid = picture.view(MOSAIC_ROWS, SIDE, MOSAIC_COLUMNS, SIDE, CHANNELS).permute(0, 2, 4, 1, 3)
        images.append(grid.reshape(-1, CHANNELS, SIDE, SIDE))
    label_N = torch.arange(MOSAIC_ROWS).repeat_interleave(MOSAIC_COLUMNS).repeat(len(paths))
    return LabelledImages(torch.cat(images), label_N)
