"""How far cosines from sketches are from exact ones, on gradients of a small GPT trained on a text file.

    PYTHONPATH=src python benchmarks/sketch_accuracy.py --data tinyshakespeare.txt

Suffixes give shapes: W = workers, K = sketch length, B = sequences, T = tokens.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono import gram
from unisono.sketch import Fold, narrow, window_seed, wrap

WORKERS, SEQUENCES, CONTEXT, WIDTH, SEEDS = 8, 4, 128, 256, 32
Gradients = dict[str, Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, WIDTH // 4)).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(heads.transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return result


class GPT(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.Sequential(*(Block() for _ in range(4)))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, token_BT: Tensor) -> Tensor:
        x = self.wte(token_BT) + self.wpe.weight
        logits: Tensor = self.lm_head(self.ln_f(self.h(x)))
        return logits


def tokens(path: Path) -> tuple[Tensor, int]:
    text = path.read_text(encoding="utf-8")
    index = {character: i for i, character in enumerate(sorted(set(text)))}
    return torch.tensor([index[character] for character in text]), len(index)


def gradients(model: GPT, stream: Tensor, generator: torch.Generator) -> Gradients:
    start_B = torch.randint(len(stream) - CONTEXT - 1, (SEQUENCES,), generator=generator)
    batch = stream[start_B[:, None] + torch.arange(CONTEXT + 1)]
    model.zero_grad()
    torch.autograd.backward(functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()))
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def with_outliers(worker: Gradients) -> Gradients:
    factor = torch.ones(WIDTH)
    factor[[17, 133]] = 40
    return {name: g * factor if g.dim() == 2 and g.shape[1] == WIDTH else g for name, g in worker.items()}


def exact_gram(workers: list[Gradients]) -> Tensor:
    return gram.gram(torch.stack([torch.cat([g.flatten() for g in worker.values()]) for worker in workers]))


def sketches(workers: list[Gradients], length: int, seed: int) -> tuple[Tensor, Tensor]:
    names = list(workers[0])
    fold = Fold(names, [workers[0][name].numel() for name in names], length, "cpu", seed)
    accumulator_W2K = torch.zeros(len(workers), 2 * length)
    square_W = torch.stack(
        [
            torch.stack([fold.add(i, worker[name], row) for i, name in enumerate(names)]).sum()
            for worker, row in zip(workers, accumulator_W2K, strict=True)
        ]
    )
    return wrap(accumulator_W2K), square_W


def report(title: str, workers: list[Gradients]) -> None:
    exact_WW = exact_gram(workers)
    cosine_WW = gram.cosines(exact_WW)
    pairs = torch.triu_indices(WORKERS, WORKERS, 1).unbind()
    mean_square = exact_WW.sum() / WORKERS**2
    print(f"\n{title}: mean cosine {gram.mean_pairwise(exact_WW):.3f}")
    print("       k    ideal  exact norm  likeliest  + shift  inflation  narrowed")
    for length in (1_024, 4_096, 16_384, 65_536):
        errors: dict[str, list[Tensor]] = {"exact norm": [], "likeliest": [], "shift": [], "narrowed": []}
        for seed in map(window_seed, range(SEEDS)):
            sketch_WK, square_W = sketches(workers, length, seed)
            likely_WW = gram.likeliest(gram.gram(sketch_WK), square_W)
            norm_W = square_W.sqrt()
            shorter_WK = narrow(sketch_WK, max(length // 16, 1_024), seed)
            estimates = {
                "exact norm": gram.gram(sketch_WK) / norm_W[:, None] / norm_W,
                "likeliest": gram.cosines(likely_WW),
                "shift": gram.cosines(gram.shift_to_mean(likely_WW, mean_square)),
                "narrowed": gram.gram(shorter_WK) / norm_W[:, None] / norm_W,
            }
            for name, estimate_WW in estimates.items():
                errors[name].append((estimate_WW - cosine_WW)[pairs])
        variance = (1 + cosine_WW[pairs] ** 2).mean()
        square = {name: torch.stack(error).square().mean() for name, error in errors.items()}
        inflation = square["exact norm"] * length / variance
        narrowed = square["narrowed"] * max(length // 16, 1_024) / variance
        rmse = {name: value.sqrt() for name, value in square.items()}
        print(
            f"{length:>8} {(variance / length).sqrt():>8.4f} {rmse['exact norm']:>11.4f} {rmse['likeliest']:>10.4f} "
            f"{rmse['shift']:>8.4f} {inflation:>10.2f} {narrowed:>9.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="a text file to train on")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 20, 150], help="when to take gradients")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        sys.exit(f"No text file at {arguments.data}. Download one (tinyshakespeare.txt, 1.1 MB) and pass it as --data.")
    torch.manual_seed(0)
    stream, vocabulary = tokens(arguments.data)
    model, generator = GPT(vocabulary), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {WORKERS} workers, {SEEDS} seeds.")
    print("RMSE of a pairwise cosine. inflation: its variance with exact norms, in units of (1 + cos^2) / k.")
    print("narrowed: the same for sketches shortened to k / 16, at least 1,024.")
    for step in range(max(arguments.steps) + 1):
        if step in arguments.steps:
            workers = [gradients(model, stream, generator) for _ in range(WORKERS)]
            report(f"step {step}", workers)
            report(f"step {step}, two channels x 40", [with_outliers(worker) for worker in workers])
        gradients(model, stream, generator)
        optimizer.step()


if __name__ == "__main__":
    main()
