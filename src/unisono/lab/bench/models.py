"""A decoder-only transformer of the Llama shape, in the size that was asked for.

B = sequences, T = tokens of one, D = width, V = vocabulary. Without rotary positions: they have no parameters, and a
step without them is a little shorter, so that listening weighs a little more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

STEP_OF_WIDTH = 64
LARGE = 50_000_000
"""Parameters from which on the vocabulary is that of a language model."""


@dataclass(frozen=True)
class Shape:
    vocabulary: int
    width: int
    layers: int
    hidden: int
    heads: int

    @property
    def parameters(self) -> int:
        layer = 4 * self.width**2 + 3 * self.width * self.hidden + 2 * self.width
        return 2 * self.vocabulary * self.width + self.layers * layer + self.width


LLAMA = Shape(vocabulary=32_000, width=2_048, layers=20, hidden=5_632, heads=16)
"""1.16 billion parameters."""


def shape_for(parameters: int) -> Shape:
    """The nearest shape with a usual ratio of depth to width."""
    vocabulary = 32_000 if parameters >= LARGE else 2_048
    shapes = [
        _shape(vocabulary, STEP_OF_WIDTH * wide, layers)
        for wide in range(1, 129)
        for layers in range(max(1, wide // 2), wide + 2)
    ]
    return min(shapes, key=lambda shape: abs(shape.parameters - parameters))


def _shape(vocabulary: int, width: int, layers: int) -> Shape:
    hidden = -(-8 * width // (3 * STEP_OF_WIDTH)) * STEP_OF_WIDTH
    return Shape(vocabulary, width, layers, hidden, heads=width // STEP_OF_WIDTH)


class TransformerBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention, self.before_hidden = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.query, self.key, self.value, self.out = (nn.Linear(shape.width, shape.width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(shape.width, shape.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.out(self._attended(self.before_attention(x_BTD)))
        y_BTD = self.before_hidden(x_BTD)
        hidden: Tensor = x_BTD + self.down(silu(self.gate(y_BTD)) * self.up(y_BTD))
        return hidden

    def _attended(self, x_BTD: Tensor) -> Tensor:
        query, key, value = (
            part(x_BTD).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        return scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


class Transformer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(TransformerBlock(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.embedding(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV: Tensor = self.head(self.norm(x_BTD))
        return logits_BTV


def loss_of(logits_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    """Of the token that follows."""
    return cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), tokens_BT[:, 1:].flatten())


def named_sizes(shape: Shape) -> dict[str, torch.Size]:
    """The parameters' names and shapes, without their memory."""
    with torch.device("meta"):
        model = Transformer(shape)
    return {name: parameter.shape for name, parameter in model.named_parameters()}
