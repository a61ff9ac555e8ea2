"""How far numbers from sketches are from exact ones, on gradients of two kinds of networks trained on real data.

    python benchmarks/sketch_accuracy.py --text FILE --images FILE [--steps 0 20 150] [--json FILE]

Eight workers take gradients of one model, each on its own batch. A transformer reads characters of a text; a
convolutional network with BatchNorm and ReLU reads images. Suffixes give shapes: W = workers, K = sketch length,
B = examples of a batch, T = tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.sketch import Fold, gram, narrow, window_seed, wrap

WORKERS, SEQUENCES, CONTEXT, WIDTH, SEEDS = 8, 4, 128, 256, 32
IMAGES, CLASSES, ACROSS, SIDE = 32, 100, 50, 32
LENGTHS = (1_024, 4_096, 16_384, 65_536)
GOALS = {"rmse_shifted": 0.0035, "inflation": 1.5}
ESTIMATORS = ("exact_norms", "likeliest", "shifted")
Gradients = dict[str, Tensor]
Row = dict[str, object]


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


def convolutional() -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer, step in ((3, 64, 1), (64, 128, 2), (128, 256, 2), (256, 256, 1), (256, 512, 2)):
        layers += [nn.Conv2d(inner, outer, 3, step, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


@dataclass(frozen=True)
class Task:
    name: str
    model: nn.Module
    loss: Callable[[torch.Generator], Tensor]
    """Of one worker's batch, drawn with the generator."""

    has_channels: Callable[[Tensor], bool]
    """Whether the second dimension of a gradient counts channels of its input, wide enough to have outliers."""

    def gradients(self, generator: torch.Generator) -> Gradients:
        self.model.zero_grad()
        torch.autograd.backward(self.loss(generator))
        return {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}

    def with_outliers(self, worker: Gradients) -> Gradients:
        """Two channels of 40 times the size, as large transformers have them."""
        result = dict(worker)
        for name, gradient in worker.items():
            if self.has_channels(gradient):
                factor = torch.ones(gradient.shape[1])
                factor[[17, 133 % len(factor)]] = 40
                result[name] = gradient * factor.view(-1, *[1] * (gradient.dim() - 2))
        return result


def text_task(path: Path) -> Task:
    text = path.read_text(encoding="utf-8")
    index = {character: i for i, character in enumerate(sorted(set(text)))}
    stream, model = torch.tensor([index[character] for character in text]), GPT(len(index))

    def loss(generator: torch.Generator) -> Tensor:
        start_B = torch.randint(len(stream) - CONTEXT - 1, (SEQUENCES,), generator=generator)
        batch = stream[start_B[:, None] + torch.arange(CONTEXT + 1)]
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    return Task("transformer", model, loss, lambda g: g.dim() == 2 and g.shape[1] == WIDTH)


def image_task(path: Path) -> Task:
    from numpy import asarray
    from PIL import Image

    with Image.open(path) as mosaic:
        pixels = torch.from_numpy(asarray(mosaic.convert("RGB")).copy())
    if pixels.shape != (CLASSES * SIDE, ACROSS * SIDE, 3):
        sys.exit(f"{path} should have {ACROSS * SIDE} x {CLASSES * SIDE} pixels. Found {tuple(pixels.shape[1::-1])}.")
    tiles = pixels.view(CLASSES, SIDE, ACROSS, SIDE, 3).permute(0, 2, 4, 1, 3).flatten(0, 1)
    image_B, model = tiles.float() / 127.5 - 1, convolutional()

    def loss(generator: torch.Generator) -> Tensor:
        chosen_B = torch.randint(len(image_B), (IMAGES,), generator=generator)
        return functional.cross_entropy(model(image_B[chosen_B]), chosen_B // ACROSS)

    return Task("convolutional", model, loss, lambda g: g.dim() == 4 and g.shape[1] >= 64)


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


def mean_and_noise(gram_WW: Tensor) -> Tensor:
    """The mean cosine, weighted by norms, and the noise scale."""
    square_W, of_mean = gram_WW.diagonal(), gram_WW.mean()
    signal, trace = gram.noise(square_W, of_mean)
    return torch.stack((gram.weighted_mean_cosine(square_W, of_mean), trace / signal))


def measure(workers: list[Gradients], length: int) -> Row:
    exact_WW = gram.gram(torch.stack([torch.cat([g.flatten() for g in worker.values()]) for worker in workers]))
    cosine_WW, whole = gram.cosines(exact_WW), mean_and_noise(exact_WW)
    pairs = torch.triu_indices(WORKERS, WORKERS, 1).unbind()
    errors: dict[str, list[Tensor]] = {name: [] for name in (*ESTIMATORS, "narrowed")}
    apart = []
    for seed in map(window_seed, range(SEEDS)):
        sketch_WK, square_W = sketches(workers, length, seed)
        norm_WW, sketched_WW = square_W.outer(square_W).sqrt(), gram.gram(sketch_WK)
        likely_WW = gram.likeliest(sketched_WW, square_W)
        shifted_WW = gram.shift_to_mean(likely_WW, exact_WW.mean())
        shorter_WK = narrow(sketch_WK, max(length // 16, 1_024), seed)
        shorter_WW = gram.gram(shorter_WK) / norm_WW
        estimates = (sketched_WW / norm_WW, gram.cosines(likely_WW), gram.cosines(shifted_WW), shorter_WW)
        for name, estimate_WW in zip(errors, estimates, strict=True):
            errors[name].append((estimate_WW - cosine_WW)[pairs])
        apart.append((mean_and_noise(shifted_WW) - whole).abs())
    mean_square = {name: torch.stack(error).square().mean().item() for name, error in errors.items()}
    variance, largest = (1 + cosine_WW[pairs] ** 2).mean().item(), torch.stack(apart).amax(0)
    return {
        "mean_cosine": round(gram.mean_pairwise(exact_WW).item(), 4),
        "ideal_rmse": round((variance / length) ** 0.5, 5),
        **{f"rmse_{name}": round(mean_square[name] ** 0.5, 5) for name in ESTIMATORS},
        "inflation": round(mean_square["exact_norms"] * length / variance, 3),
        "inflation_narrowed": round(mean_square["narrowed"] * max(length // 16, 1_024) / variance, 3),
        "error_of_mean_cosine": largest[0].item(),
        "relative_error_of_noise_scale": (largest[1] / whole[1].abs()).item(),
    }


def snapshots(task: Task, steps: list[int]) -> Iterator[tuple[int, list[Gradients]]]:
    """The workers' gradients at some steps of a training run."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-3)
    for step in range(max(steps) + 1):
        if step in steps:
            yield step, [task.gradients(generator) for _ in range(WORKERS)]
        task.gradients(generator)
        optimizer.step()


def run(task: Task, steps: list[int]) -> Iterator[Row]:
    parameters = sum(p.numel() for p in task.model.parameters())
    print(f"\n{task.name}, {parameters:,} parameters")
    for step, workers in snapshots(task, steps):
        for stress in ("", "two channels x 40"):
            stressed = [task.with_outliers(worker) for worker in workers] if stress else workers
            print(f"step {step} {stress}\n       k    ideal  exact norms  likeliest  + shift  inflation  narrowed")
            for length in LENGTHS:
                row = measure(stressed, length)
                rmse = " ".join(f"{row[f'rmse_{name}']:>9.4f}" for name in ESTIMATORS)
                narrowed = row["inflation_narrowed"]
                print(f"{length:>8} {row['ideal_rmse']:>8.4f} {rmse} {row['inflation']:>10.2f} {narrowed:>9.2f}")
            yield {"network": task.name, "parameters": parameters, "step": step, "stress": stress, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, help="a text file, such as tinyshakespeare.txt")
    parser.add_argument("--images", type=Path, help="100 x 50 tiles of 32 x 32 pixels, one class a row, as one picture")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 20, 150], help="when to take gradients")
    parser.add_argument("--json", metavar="FILE", type=Path, help="where the result for length 65,536 goes")
    chosen = parser.parse_args()
    if not (chosen.text or chosen.images):
        sys.exit("Something to train on is needed. Found neither --text nor --images. Pass one of them, or both.")
    for path in (chosen.text, chosen.images):
        if path and not path.is_file():
            sys.exit(f"No file at {path}. Download one (tinyshakespeare.txt, a mosaic of CIFAR-100) and pass its path.")
    torch.manual_seed(0)
    print(f"RMSE of a pairwise cosine, {WORKERS} workers, {SEEDS} seeds. inflation: its variance with exact norms, in")
    print("units of (1 + cos^2) / k. narrowed: the same for sketches shortened to k / 16, at least 1,024.")
    tasks = [make(path) for make, path in ((text_task, chosen.text), (image_task, chosen.images)) if path]
    rows = [row for task in tasks for row in run(task, chosen.steps)]
    if chosen.json:
        command = f"python {sys.argv[0]} --text TEXT --images IMAGES --json {chosen.json}"
        about = {"command": command, "torch": str(torch.__version__), "length": LENGTHS[-1], "goals": GOALS}
        chosen.json.write_text(json.dumps(about | {"results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
