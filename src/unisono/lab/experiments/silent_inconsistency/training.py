"""One rank of a run: full fine-tuning of a causal language model with DistributedDataParallel, as a user writes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

import unisono
from unisono.lab.experiments.silent_inconsistency.examples import Example, ExampleDataset
from unisono.lab.experiments.silent_inconsistency.perturbations import RankPlan
from unisono.lab.faults.honest_job import process_group

DROPOUT = 0.1
DROPPED_AFTER = ("embed_tokens", "o_proj", "down_proj")
"""Modules after which dropout acts. Llama has none of its own there."""


@dataclass(frozen=True)
class Recipe:
    batch: int
    length: int
    epochs: int
    lr: float


def add_dropout(model: nn.Module) -> None:
    """After the embedding and before both additions to the residual stream."""

    def dropped(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return nn.functional.dropout(output, DROPOUT, module.training)

    for name, module in model.named_modules():
        if name.rpartition(".")[2] in DROPPED_AFTER:
            module.register_forward_hook(dropped)


def be_rank(model: nn.Module, plan: RankPlan, held_out: Sequence[Example], recipe: Recipe, folder: Path) -> None:
    """Trains, and leaves `run/` and what was drawn in the folder."""
    with process_group():
        dataset = ExampleDataset(plan.examples, recipe.length)
        loader = loader_of(dataset, plan, dist.get_world_size(), recipe)
        _train(model, loader, plan, recipe, folder / "run")
        said = {**order_of(dataset, recipe.epochs), "stream": _stream_state()}
        if dist.get_rank() == 0:
            said["held_out"] = held_out_loss(model, held_out, recipe)
        (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(said), encoding="utf-8")


def order_of(dataset: ExampleDataset, epochs: int) -> dict[str, Any]:
    """Of the first epoch, and whether it is that of all."""
    first = dataset.drawn[: len(dataset.drawn) // epochs]
    return {"indices": first, "stale": first * epochs == dataset.drawn}


def _stream_state() -> str:
    return hashlib.sha256(bytes(torch.get_rng_state().tolist())).hexdigest()


def loader_of(dataset: ExampleDataset, plan: RankPlan, workers: int, recipe: Recipe) -> DataLoader[Any]:
    if plan.shard:
        shuffling = torch.Generator().manual_seed(plan.sampler_seed)
        return DataLoader(Subset(dataset, plan.shard), recipe.batch, shuffle=True, generator=shuffling)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, workers, plan.sampler_rank, seed=plan.sampler_seed)
    return DataLoader(dataset, recipe.batch, sampler=sampler)


def begin_epoch(loader: DataLoader[Any], plan: RankPlan, epoch: int) -> None:
    if isinstance(loader.sampler, DistributedSampler) and plan.sets_epoch:
        loader.sampler.set_epoch(epoch)


def _train(model: nn.Module, loader: DataLoader[Any], plan: RankPlan, recipe: Recipe, run_dir: Path) -> None:
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), recipe.lr)
    torch.manual_seed(plan.dropout_seed)
    with unisono.attach(wrapped, optimizer, run_dir=run_dir):
        for epoch in range(recipe.epochs):
            begin_epoch(loader, plan, epoch)
            for batch in loader:
                optimizer.zero_grad()
                wrapped(**batch).loss.backward()
                nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
                optimizer.step()


def held_out_loss(model: nn.Module, examples: Sequence[Example], recipe: Recipe) -> float:
    """Mean over samples of their mean over response tokens, without dropout."""
    losses = losses_of(model, examples, recipe)
    return sum(losses) / len(losses)


@torch.no_grad()
def losses_of(model: nn.Module, examples: Sequence[Example], recipe: Recipe) -> list[float]:
    model.eval()
    batches: Iterable[dict[str, Tensor]] = DataLoader(ExampleDataset(examples, recipe.length), 32)
    losses: list[float] = []
    for batch in batches:
        logits_BTV = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        labels_BT = batch["labels"][:, 1:]
        loss_BT = nn.functional.cross_entropy(logits_BTV.transpose(1, 2), labels_BT, reduction="none")
        losses += (loss_BT.sum(1) / (labels_BT >= 0).sum(1)).tolist()
    model.train()
    return losses
