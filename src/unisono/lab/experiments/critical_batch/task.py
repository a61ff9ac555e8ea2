"""The task: the next character of a text, from the 32 before it, learnt by a small network with plain SGD.

B = samples of a batch, C = characters of a context.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unisono.act.microbatching import microbatches
from unisono.act.weightings.agreement import AgreementFilter
from unisono.common.errors import UserError

FILE = Path("text", "tinyshakespeare.txt")
CONTEXT, EMBEDDED, HIDDEN = 32, 12, 128
VALIDATED = 4_096
SPACING = 1.02
"""The validation loss is looked at after so many times the steps of the look before."""

HELD_OUT = 0.1
LOST = 1.5
"""A validation loss of so many times that of guessing: the learning rate is too large."""


class CharacterTask:
    """
    :param text: Its last tenth is held out.
    """

    def __init__(self, text: str, target: float) -> None:
        symbols = sorted(set(text))
        places = {symbol: place for place, symbol in enumerate(symbols)}
        numbers = torch.tensor([places[symbol] for symbol in text])
        held_out = int((1 - HELD_OUT) * len(numbers))
        self.symbols, self.target = len(symbols), target
        self._train = numbers[:held_out].unfold(0, CONTEXT + 1, 1)
        validation = numbers[held_out:].unfold(0, CONTEXT + 1, 1)
        self._validation = validation[torch.randperm(len(validation), generator=_seeded(0))[:VALIDATED]]

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Embedding(self.symbols, EMBEDDED),
            nn.Flatten(),
            nn.Linear(CONTEXT * EMBEDDED, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, self.symbols),
        )

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Contexts and the characters that follow, drawn with replacement."""
        drawn_BC = self._train[torch.randint(len(self._train), (size,), generator=generator)]
        return drawn_BC[:, :-1], drawn_BC[:, -1]

    @torch.no_grad()
    def validation_loss(self, model: nn.Module) -> float:
        return float(cross_entropy(model(self._validation[:, :-1]), self._validation[:, -1]))


@dataclass(frozen=True)
class Way:
    """How a model is trained."""

    batch: int
    rate: float
    seed: int
    micro: int | None = None
    """Samples of a micro-batch; None: the batch is averaged as a whole."""

    max_distance: float | None = None


@dataclass
class TrainingResult:
    reached: bool
    steps: int
    """Up to the target, or until it was given up."""

    loss: float
    seconds: float
    skipped: int = 0
    kept: float = 1.0
    """Mean share of the micro-batches that the filter let into the update."""


def train(task: CharacterTask, way: Way, most_steps: int) -> TrainingResult:
    """Until the validation loss is at the target, is lost, or the steps are over."""
    torch.set_num_threads(1)
    model, generator = task.model(way.seed), _seeded(1_000 + way.seed)
    optimizer = torch.optim.SGD(model.parameters(), way.rate)
    kept_by = _averaged(model) if way.micro is None else _filtered(model, way)
    lost = LOST * math.log(task.symbols)
    result, kept, next_look, began = TrainingResult(False, 0, math.inf, 0.0), 0.0, 10, time.process_time()
    while result.steps < most_steps:
        optimizer.zero_grad()
        share = kept_by(*task.batch(way.batch, generator))
        optimizer.step()
        result.steps += 1
        kept += share
        result.skipped += share == 0
        if result.steps >= next_look:
            next_look = math.ceil(result.steps * SPACING)
            result.loss = task.validation_loss(model)
            result.reached = result.loss <= task.target
            if result.reached or not result.loss < lost:
                break
    result.seconds, result.kept = time.process_time() - began, kept / result.steps
    return result


def _averaged(model: nn.Module) -> Callable[[Tensor, Tensor], float]:
    def backward(inputs_BC: Tensor, targets_B: Tensor) -> float:
        cross_entropy(model(inputs_BC), targets_B).backward()
        return 1.0

    return backward


def _filtered(model: nn.Module, way: Way) -> Callable[[Tensor, Tensor], float]:
    """The same samples, in micro-batches; those that agree are averaged."""
    workers = microbatches(model, weighting=AgreementFilter(max_distance=way.max_distance or 0.0))
    size = way.micro or way.batch

    def backward(inputs_BC: Tensor, targets_B: Tensor) -> float:
        for micro_BC, wanted_B in zip(inputs_BC.split(size), targets_B.split(size), strict=True):
            with workers.microbatch():
                cross_entropy(model(micro_BC), wanted_B).backward()
        return float((workers.reduce() != 0).double().mean())

    return backward


def read_text(folder: Path) -> str:
    path = folder / FILE
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"`--data` should be a folder with {FILE}. Found no text at {path}: {error}.") from None


def generated_text(words: int = 6_000) -> str:
    """Sentences of a few made-up words, for a small experiment."""
    generator = _seeded(0)
    letters_WL = torch.randint(10, (40, 4), generator=generator).tolist()
    known = ["".join("abcdefghij"[letter] for letter in letters_L) for letters_L in letters_WL]
    return " ".join(known[word] for word in torch.randint(len(known), (words,), generator=generator).tolist())


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
