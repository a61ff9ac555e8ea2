"""Three small things to learn, each for many virtual workers at once.

A virtual worker has weights and a batch of its own, so one backward pass gives the gradients of all of them.
V = virtual workers, B = samples of a batch, T = places in a text, C = classes, H = heads of attention, N = samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Generator, Tensor
from torch.nn import functional

Weights: TypeAlias = Mapping[str, Tensor]
CLASSES, FEATURES, HIDDEN = 10, 16, 32
SIDE, CHANNELS, PATCH = 8, 12, 9
WORDS, PLACES, WIDTH, HEADS = 12, 12, 16, 2


@dataclass(frozen=True, slots=True)
class Task:
    """Names of weights start with their layer group and a dot."""

    weights: Callable[[Generator], dict[str, Tensor]]
    data: Callable[[Generator, int], tuple[Tensor, Tensor]]
    """`count` samples of one population, which the generator chooses: inputs and targets."""

    loss: Callable[[Weights, Tensor, Tensor, float], Tensor]
    """(weights, inputs_VB, targets_VB, dropout) -> mean loss of each virtual worker."""


def _matrix(generator: Generator, inputs: int, outputs: int, gain: float = 1.0) -> Tensor:
    return gain * torch.randn(inputs, outputs, generator=generator) / math.sqrt(inputs)


def _classified(logits_VBC: Tensor, targets_VB: Tensor) -> Tensor:
    losses = functional.cross_entropy(logits_VBC.flatten(0, -2), targets_VB.flatten(), reduction="none")
    return losses.reshape(len(logits_VBC), -1).mean(1)


def cloud_weights(generator: Generator) -> dict[str, Tensor]:
    return {
        "first.weight": _matrix(generator, FEATURES, HIDDEN, 1.4),
        "first.bias": torch.zeros(1, HIDDEN),
        "second.weight": _matrix(generator, HIDDEN, HIDDEN, 1.4),
        "second.bias": torch.zeros(1, HIDDEN),
        "head.weight": _matrix(generator, HIDDEN, CLASSES),
        "head.bias": torch.zeros(1, CLASSES),
    }


def clouds(generator: Generator, count: int) -> tuple[Tensor, Tensor]:
    """Points around ten centres."""
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    labels_N = torch.randint(CLASSES, (count,), generator=generator)
    return centres[labels_N] + 0.8 * torch.randn(count, FEATURES, generator=generator), labels_N


def cloud_loss(weights: Weights, inputs: Tensor, targets_VB: Tensor, dropout: float) -> Tensor:
    hidden = functional.gelu(inputs @ weights["first.weight"] + weights["first.bias"])
    hidden = functional.dropout(hidden, dropout)
    hidden = functional.gelu(hidden @ weights["second.weight"] + weights["second.bias"])
    return _classified(hidden @ weights["head.weight"] + weights["head.bias"], targets_VB)


def image_weights(generator: Generator) -> dict[str, Tensor]:
    return {
        "patches.weight": _matrix(generator, PATCH, CHANNELS, 1.4),
        "patches.bias": torch.zeros(1, 1, CHANNELS),
        "mixer.weight": _matrix(generator, CHANNELS, CHANNELS, 1.4),
        "mixer.bias": torch.zeros(1, 1, CHANNELS),
        "head.weight": _matrix(generator, 4 * CHANNELS, CLASSES),
        "head.bias": torch.zeros(1, CLASSES),
    }


def images(generator: Generator, count: int) -> tuple[Tensor, Tensor]:
    """Ten drawings, shifted around and blurred by noise."""
    drawings = functional.interpolate(torch.randn(CLASSES, 1, 4, 4, generator=generator), SIDE, mode="bilinear")[:, 0]
    labels_N = torch.randint(CLASSES, (count,), generator=generator)
    shifts_N = torch.randint(SIDE, (count,), generator=generator)
    columns = (torch.arange(SIDE) + shifts_N[:, None]) % SIDE
    shifted = drawings[labels_N].gather(2, columns[:, None].expand(-1, SIDE, -1))
    return shifted + 0.5 * torch.randn(count, SIDE, SIDE, generator=generator), labels_N


def image_loss(weights: Weights, inputs: Tensor, targets_VB: Tensor, dropout: float) -> Tensor:
    """A convolution over patches of three by three, as one product for all workers."""
    patches = inputs.unfold(2, 3, 1).unfold(3, 3, 1).flatten(4).flatten(2, 3)
    hidden = functional.gelu(patches @ weights["patches.weight"][:, None] + weights["patches.bias"])
    hidden = functional.gelu(hidden @ weights["mixer.weight"][:, None] + weights["mixer.bias"])
    quarters = hidden.unflatten(2, (2, 3, 2, 3)).mean((3, 5)).flatten(2)
    quarters = functional.dropout(quarters, dropout)
    return _classified(quarters @ weights["head.weight"] + weights["head.bias"], targets_VB)


def text_weights(generator: Generator, blocks: int = 2) -> dict[str, Tensor]:
    weights = {
        "embedding.words": 0.5 * torch.randn(WORDS, WIDTH, generator=generator),
        "embedding.places": 0.1 * torch.randn(PLACES, WIDTH, generator=generator),
    }
    for block in range(blocks):
        weights |= {
            f"block{block}.attention": _matrix(generator, WIDTH, 3 * WIDTH),
            f"block{block}.joined": _matrix(generator, WIDTH, WIDTH, 0.5),
            f"block{block}.up": _matrix(generator, WIDTH, 2 * WIDTH, 1.4),
            f"block{block}.down": _matrix(generator, 2 * WIDTH, WIDTH, 0.5),
        }
    return weights | {"head.weight": _matrix(generator, WIDTH, WORDS, 0.5)}


def texts(generator: Generator, count: int) -> tuple[Tensor, Tensor]:
    """Each word depends on the one before; the targets are the next words."""
    chances = torch.softmax(2.5 * torch.randn(WORDS, WORDS, generator=generator), 1)
    words = [torch.randint(WORDS, (count,), generator=generator)]
    for _ in range(PLACES):
        words.append(torch.multinomial(chances[words[-1]], 1, generator=generator)[:, 0])
    text_NT = torch.stack(words, 1)
    return text_NT[:, :-1], text_NT[:, 1:]


def text_loss(
    weights: Weights, inputs: Tensor, targets: Tensor, dropout: float, *, normalise_after: bool = False
) -> Tensor:
    workers = torch.arange(len(inputs))[:, None, None]
    stream = weights["embedding.words"][workers, inputs] + weights["embedding.places"][:, None]
    for block in sorted({name.split(".")[0] for name in weights if name.startswith("block")}):
        for layer in (_attended, _transformed):
            if normalise_after:
                stream = _normal(stream + functional.dropout(layer(weights, block, stream), dropout))
            else:
                stream = stream + functional.dropout(layer(weights, block, _normal(stream)), dropout)
    return _classified(_normal(stream) @ weights["head.weight"][:, None], targets)


def _normal(stream: Tensor) -> Tensor:
    return functional.layer_norm(stream, (WIDTH,))


def _attended(weights: Weights, block: str, stream: Tensor) -> Tensor:
    parts = stream @ weights[f"{block}.attention"][:, None]
    query, key, value = parts.unflatten(-1, (3, HEADS, -1)).permute(3, 0, 1, 4, 2, 5)
    mixed_VBHT = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return mixed_VBHT.transpose(2, 3).flatten(3) @ weights[f"{block}.joined"][:, None]


def _transformed(weights: Weights, block: str, stream: Tensor) -> Tensor:
    return functional.gelu(stream @ weights[f"{block}.up"][:, None]) @ weights[f"{block}.down"][:, None]


def deep_text_weights(generator: Generator) -> dict[str, Tensor]:
    return text_weights(generator, blocks=12)


def deep_text_loss(weights: Weights, inputs: Tensor, targets: Tensor, dropout: float) -> Tensor:
    return text_loss(weights, inputs, targets, dropout, normalise_after=True)


TASKS = {
    "clouds": Task(cloud_weights, clouds, cloud_loss),
    "images": Task(image_weights, images, image_loss),
    "texts": Task(text_weights, texts, text_loss),
    "deep texts": Task(deep_text_weights, texts, deep_text_loss),
}
