"""How often a decision by sketches differs from the one by exact inner products of the same gradients.

    python benchmarks/decision_flips.py [--steps 200 | --short] [--json FILE]

A small transformer learns the source of Python's standard library, byte by byte, from the plain mean of eight virtual
workers. At every step the filter decides three times: by exact inner products, by sketches of 65,536 numbers as
steering does, and by sketches of 1,024.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from unisono.sketch import Fold, window_seed, wrap
from unisono.sketch.gram import cosines, gram, likeliest
from unisono.weightings import AgreementFilter

WORKERS, BATCH, TOKENS, WIDTH = 8, 4, 64, 128
LENGTHS = (1_024, 65_536)
LIMITS = (0.95, 0.97, 0.99)
ORDERS = ("any", "sequential")


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        logits: Tensor = self.head(self.blocks(self.embedding(tokens), mask=mask, is_causal=True))
        return logits


def corpus() -> Tensor:
    sources = sorted(Path(os.__file__).parent.glob("*.py"))
    return torch.tensor(list(b"".join(source.read_bytes() for source in sources)), dtype=torch.int64)


def gradients(model: Transformer, text: Tensor, generator: torch.Generator) -> list[list[Tensor]]:
    """Of each worker, parameter by parameter."""
    found = []
    for _ in range(WORKERS):
        starts = torch.randint(len(text) - TOKENS - 1, (BATCH,), generator=generator)
        rows = torch.stack([text[start : start + TOKENS + 1] for start in starts.tolist()])
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        found.append(list(torch.autograd.grad(loss, list(model.parameters()))))
    return found


def exact_gram(gradients_W: list[list[Tensor]]) -> Tensor:
    return gram(torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients_W]))


def sketched_gram(gradients_W: list[list[Tensor]], fold: Fold) -> Tensor:
    sketches, squares = [], []
    for parts in gradients_W:
        accumulator_2K = torch.zeros(2 * fold.length)
        squares.append(sum(fold.add(index, part, accumulator_2K) for index, part in enumerate(parts)))
        sketches.append(wrap(accumulator_2K))
    return likeliest(gram(torch.stack(sketches)), torch.stack([torch.as_tensor(square) for square in squares]))


def measured(steps: int) -> dict[str, object]:
    torch.manual_seed(0)
    model, text, generator = Transformer(), corpus(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    names, sizes = zip(*((name, parameter.numel()) for name, parameter in model.named_parameters()), strict=True)
    folds = {length: Fold(names, sizes, length, "cpu") for length in LENGTHS}
    flips = {(length, limit, order): 0 for length in LENGTHS for limit in LIMITS for order in ORDERS}
    cosine = []
    for step in range(steps):
        gradients_W = gradients(model, text, generator)
        exact_WW = exact_gram(gradients_W)
        cosine.append(float((cosines(exact_WW).sum() - WORKERS) / (WORKERS * (WORKERS - 1))))
        for length, fold in folds.items():
            fold.reseed(window_seed(step))
            sketched_WW = sketched_gram(gradients_W, fold)
            for limit in LIMITS:
                for order in ORDERS:
                    decide = AgreementFilter(max_distance=limit, order=order)
                    differs_W = (decide(sketched_WW) != 0) != (decide(exact_WW) != 0)
                    flips[length, limit, order] += int(differs_W.sum())
        for parameter, *parts in zip(model.parameters(), *gradients_W, strict=True):
            parameter.grad = torch.stack(parts).mean(0)
        optimizer.step()
    decisions = steps * WORKERS
    return {
        "steps": steps,
        "parameters": sum(sizes),
        "mean_cosine_first_and_last_quarter": [mean(cosine[: steps // 4]), mean(cosine[-steps // 4 :])],
        "share_of_decisions_that_differ": [
            {"sketch": length, "max_distance": limit, "order": order, "share": count / decisions}
            for (length, limit, order), count in flips.items()
        ],
    }


def mean(numbers: list[float]) -> float:
    return sum(numbers) / max(1, len(numbers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--short", action="store_true", help="4 steps: shows that it works, too short for a figure")
    parser.add_argument("--json", metavar="FILE", help="where the result goes")
    options = parser.parse_args()
    result = measured(4 if options.short else options.steps)
    text = json.dumps({"command": " ".join(["python", *sys.argv]), "torch": str(torch.__version__), **result}, indent=1)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
