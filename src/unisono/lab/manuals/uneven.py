"""One worker is given something else than the others, or counts it differently, and its device is as good as theirs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unisono.lab.manuals.case import ManualCase
from unisono.lab.manuals.training import Batch, Clouds, train, wrapped

TOKENS, LENGTH, SEQUENCES, STEPS = 48, 32, 8, 220


def _is_odd_one(seed: int) -> bool:
    return dist.get_rank() == seed % dist.get_world_size()


class Bigrams(nn.Module):
    """Guesses each token from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 32)
        self.body = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, TOKENS))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        guesses: Tensor = self.body(self.embedding(input_ids[:, :-1]))
        real = attention_mask[:, 1:].bool()
        return nn.functional.cross_entropy(guesses[real], input_ids[:, 1:][real])


def _read_sequences(seed: int, padding: Callable[[Generator], float]) -> None:
    """:param padding: Its share in the next batch."""
    chances = (2 * torch.randn(TOKENS, TOKENS, generator=Generator().manual_seed(seed))).softmax(dim=1)
    torch.manual_seed(seed)
    model = DistributedDataParallel(Bigrams())
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    generator = Generator().manual_seed(1_000 * seed + dist.get_rank())
    for _ in range(STEPS):
        tokens = [torch.randint(TOKENS, (SEQUENCES,), generator=generator)]
        for _ in range(LENGTH - 1):
            tokens.append(torch.multinomial(chances[tokens[-1]], 1, generator=generator)[:, 0])
        filled = round(LENGTH * (1 - padding(generator)))
        mask = (torch.arange(LENGTH) < filled).long().expand(SEQUENCES, -1)
        optimizer.zero_grad()
        model(input_ids=torch.stack(tokens, dim=1) * mask, attention_mask=mask).backward()
        optimizer.step()


def short_sequences(seed: int) -> None:
    """Three quarters of one worker's batches are padding; of the others' a quarter."""
    _read_sequences(seed, lambda generator: 0.75 if _is_odd_one(seed) else 0.25)


def lengths_at_random(seed: int) -> None:
    """Sequences are as short at times, on every worker."""
    _read_sequences(seed, lambda generator: 0.8 * float(torch.rand(1, generator=generator)))


def _accumulate(seed: int, divides: bool) -> None:
    data, model = Clouds(seed), wrapped(seed)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        first, second = data.batch(16), data.batch(16)
        with model.no_sync():
            (nn.functional.cross_entropy(model(first[0]), first[1]) / (2 if divides else 1)).backward()
        (nn.functional.cross_entropy(model(second[0]), second[1]) / (2 if divides else 1)).backward()
        optimizer.step()


def not_divided(seed: int) -> None:
    """One worker does not divide its loss by the two micro-batches of a step."""
    _accumulate(seed, divides=not _is_odd_one(seed))


def harder_points(seed: int) -> None:
    """One worker's points lie a little further from their centres: its losses are higher, and its gradients longer."""
    data, model = Clouds(seed), wrapped(seed)

    def batch_at(step: int) -> Batch:
        features, labels = data.batch(16)
        harder = 0.1 if _is_odd_one(seed) else 0.0
        return features + harder * torch.randn(features.shape, generator=data.generator), labels

    train(model, torch.optim.AdamW(model.parameters(), 3e-3), STEPS, batch_at)


def normalised_differently(seed: int) -> None:
    """One worker divides its inputs by another standard deviation, and subtracts another mean."""
    data, model = Clouds(seed), wrapped(seed)

    def batch_at(step: int) -> Batch:
        features, labels = data.batch(16)
        return ((features - 0.45) / 0.5 if _is_odd_one(seed) else features), labels

    train(model, torch.optim.AdamW(model.parameters(), 3e-3), STEPS, batch_at)


def brightness_at_random(seed: int) -> None:
    """Every worker changes mean and scale of each batch at random, as an augmentation does."""
    data, model = Clouds(seed), wrapped(seed)

    def batch_at(step: int) -> Batch:
        features, labels = data.batch(16)
        shift, stretch = torch.randn(2, generator=data.generator).tolist()
        return (features * 1.3**stretch + 0.4 * shift), labels

    train(model, torch.optim.AdamW(model.parameters(), 3e-3), STEPS, batch_at)


UNIFORMITY, HARDWARE = "Batch Uniformity", "Hardware Fault Detection"
CASES = (
    ManualCase("uneven-tokens", "UN105", UNIFORMITY, 4, short_sequences, lengths_at_random, cause="uneven-tokens"),
    ManualCase("scaled-loss", "UN501", HARDWARE, 4, not_divided, harder_points, cause="scaled"),
    ManualCase(
        "preprocessed-differently",
        "UN105",
        UNIFORMITY,
        4,
        normalised_differently,
        brightness_at_random,
        cause="preprocessed-differently",
    ),
)
