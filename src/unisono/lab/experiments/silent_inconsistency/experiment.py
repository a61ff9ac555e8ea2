"""Setting after setting, seed after seed, each run added to the results as it ends."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it with their first step: once here, not in each rank
from torch import nn

from unisono.common.errors import UserError
from unisono.lab.experiments.catalogue import Order
from unisono.lab.experiments.results import Results, Run
from unisono.lab.experiments.silent_inconsistency.examples import Example, generated_examples, read_examples
from unisono.lab.experiments.silent_inconsistency.outcome import outcome
from unisono.lab.experiments.silent_inconsistency.perturbations import PERTURBATIONS, Ground, drawn
from unisono.lab.experiments.silent_inconsistency.training import Recipe, add_dropout, be_rank, losses_of
from unisono.lab.launching import fork_ranks, progress

IDENTITY = ("setting", "seed", "workers", "examples")


@dataclass(frozen=True)
class Size:
    workers: int
    seeds: int
    settings: tuple[str, ...]
    examples: int
    """Drawn anew for each seed."""

    held_out: int
    recipe: Recipe

    @property
    def steps(self) -> int:
        return self.recipe.epochs * self.examples // (self.workers * self.recipe.batch)


FULL = Size(8, 5, tuple(PERTURBATIONS), 2048, 256, Recipe(batch=4, length=128, epochs=2, lr=1e-3))
SMALL = Size(4, 1, ("synchronised", "dropout-identical", "wrong-labels"), 512, 32, Recipe(4, 24, 2, 3e-3))
VOCABULARY = 64
"""Of the small one."""


@dataclass(frozen=True)
class Material:
    model: nn.Module
    examples: Sequence[Example]
    size: Size

    def ground(self, seed: int) -> tuple[Ground, list[Example]]:
        """What to train on, and what to hold out."""
        size = self.size
        order = torch.randperm(len(self.examples), generator=torch.Generator().manual_seed(seed)).tolist()
        chosen = [self.examples[index] for index in order[: size.examples + size.held_out]]
        train, held_out = chosen[: size.examples], chosen[size.examples :]
        return Ground(seed, size.workers, size.recipe.length, train, self._by_difficulty), held_out

    def _by_difficulty(self, examples: Sequence[Example]) -> list[int]:
        losses = losses_of(self.model, examples, self.size.recipe)
        return sorted(range(len(losses)), key=losses.__getitem__)


def run(order: Order) -> str:
    # Forked ranks must not inherit a pool of threads.
    torch.set_num_threads(1)
    size = SMALL if order.small else FULL
    results = Results(order.out, IDENTITY)
    missing = [one for one in _plan(size) if not results.has(one)]
    ends = time.monotonic() + 60 * order.minutes
    material = _material(order, size) if missing else None
    longest = 0.0
    for one in missing:
        begun = time.monotonic()
        if material is None or begun + longest > ends:
            break
        progress(f"{one['setting']}, seed {one['seed']}, {size.steps} steps")
        results.add(one | _run(material, one["setting"], one["seed"]) | {"command": order.command})
        longest = max(longest, time.monotonic() - begun)
    progress("")
    planned = _plan(size)
    done = sum(results.has(one) for one in planned)
    return f"{done} of {len(planned)} runs are in {order.out}{': call again' * (done < len(planned))}"


def _plan(size: Size) -> list[Run]:
    """The first seed of all settings, then the second of all: the table fills evenly."""
    constant = {"steps": size.steps, "workers": size.workers, "examples": size.examples}
    return [{"setting": setting, "seed": seed} | constant for seed in range(size.seeds) for setting in size.settings]


def _run(material: Material, setting: str, seed: int) -> Run:
    perturbation = PERTURBATIONS[setting]
    ground, held_out = material.ground(seed)
    plans = perturbation.plans(ground)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="unisono-lab-") as place:
        folder = Path(place)

        def rank_of(rank: int) -> None:
            be_rank(material.model, plans[rank], held_out, material.size.recipe, folder)

        fork_ranks(ground.workers, rank_of, folder / "complaints.txt")
        said_W = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ground.workers)]
        seen = drawn(ground, plans, *([said[name] for said in said_W] for name in ("indices", "stale", "stream")))
        if not perturbation.fired(ground, seen):
            raise RuntimeError(f"The setting {setting} has not happened with seed {seed}: {seen}.")
        kept = outcome(ground, perturbation, seen, folder / "run")
    recipe = material.size.recipe
    return kept | {
        "held_out_loss": round(said_W[0]["held_out"], 5),
        "seconds": round(time.monotonic() - begun, 1),
        "batch": recipe.batch,
        "length": recipe.length,
        "lr": recipe.lr,
        "device": "cpu",
        "torch": torch.__version__,
    }


def _material(order: Order, size: Size) -> Material:
    _need_packages()
    from transformers import LlamaConfig, LlamaForCausalLM

    if order.data is None:
        examples = generated_examples(size.examples + size.held_out, VOCABULARY, size.recipe.length)
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=64,
            )
        )
    else:
        model, examples = _stories(order.data / "stories260K"), _alpaca(order.data, size)
    model.config.use_cache = False
    add_dropout(model)
    return Material(model.train(), examples, size)


def _need_packages() -> None:
    absent = [name for name in ("transformers", "sentencepiece") if find_spec(name) is None]
    if absent:
        raise UserError(
            f"This experiment needs transformers and sentencepiece. Found no {' and no '.join(absent)}. "
            f"Install with: pip install {' '.join(absent)}"
        )


def _stories(folder: Path) -> Any:
    from transformers import LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        return LlamaForCausalLM.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(
            f"`--data` should hold stories260K/ as a Llama model of transformers. Found in {folder}: {error}"
        ) from None


def _alpaca(data: Path, size: Size) -> list[Example]:
    from sentencepiece import SentencePieceProcessor

    vocabulary = data / "stories260K" / "tok512.model"
    if not vocabulary.is_file():
        raise UserError(f"`--data` should hold stories260K/tok512.model, its tokens. Found no {vocabulary}.")
    tokenizer = SentencePieceProcessor(model_file=str(vocabulary))
    examples = read_examples(data / "alpaca" / "alpaca_subset.jsonl", tokenizer, size.recipe.length)
    needed = size.examples + size.held_out
    if len(examples) < needed:
        raise UserError(f"`--data` should hold {needed:,} examples of Alpaca that fit. Found {len(examples):,}.")
    return examples
