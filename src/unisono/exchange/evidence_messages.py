"""The listening thread's share of the evidence: hashes what the training thread took, as messages to rank 0."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unisono.exchange.epoch_coverage import EpochCoverage, SampleDraws
from unisono.exchange.store import Message
from unisono.listen.evidence.batch_tracker import MASKS, Leaf, Pull
from unisono.listen.evidence.rng_streams import consumed
from unisono.listen.handover import Handover
from unisono.listen.messages import RankStep
from unisono.sketch.fingerprint import digest, hash_of, rows

REMEMBERED_BATCHES = 4_096
REMEMBERED_AUDITS = 64
REMEMBERED_STEPS, REMEMBERED_INDICES = 1_000, 1_024
MOST_PASSES = 8
IGNORED = -100
"""The target that torch's losses leave out unless told otherwise."""

FEWEST_VALUES = 4
"""Inputs of fewer different numbers say too little about which batch they are."""

MOST_DATASETS = 8
COVERAGE_EVERY = 50
CLOSELY_FOLLOWED = 8
"""Passes over the data of which every one is told; later ones at most every `COVERAGE_EVERY` steps."""


class EvidenceMessages:
    def __init__(self) -> None:
        self._contents, self._targets, self._index_lists = RecentNumbers(), RecentNumbers(), RecentNumbers()
        self._audits: deque[tuple[int, dict[str, int]]] = deque(maxlen=REMEMBERED_AUDITS)
        self._indices: deque[tuple[int, array[int], float | None]] = deque(maxlen=REMEMBERED_STEPS)
        self._told: Counter[str] = Counter()
        self._passes: dict[int, EpochCoverage] = {}
        self._evaluated: dict[int, SampleDraws] = {}
        self._step = self._last_told = -1

    def take(self, handover: Handover) -> tuple[RankStep, list[Message]]:
        """The rank's numbers of the step, and what else it has to tell."""
        raw_evidence, self._step = handover.raw_evidence, handover.step
        messages = self._facts(handover) + self._data(handover)
        if raw_evidence.streams:
            messages.append(self._streams(handover))
        if raw_evidence.projections:
            messages.append(self._projections(handover))
        return self._signal(handover), messages

    def last_messages(self) -> list[Message]:
        """What has been drawn since the last message about it."""
        told = [self._coverage(passes, self._step, complete=False) for passes in self._passes.values()]
        return [message | {"key": f"{message['key']}/end"} for message in told if message is not None]

    def audit_of(self, step: int) -> Message | None:
        """The fingerprints of single parameters after `step`, if they were taken and are not forgotten."""
        prints = next((prints for at, prints in self._audits if at == step), None)
        if prints is None:
            return None
        return {"kind": "audit", "key": f"audit/{step}", "step": step, "prints": prints}

    def batch_of(self, step: int, rank: int) -> Message | None:
        """What was read at `step`."""
        for at, indices, loss in self._indices:
            if at == step:
                key = f"batch/{step}/{rank}"
                known = list(indices)
                return {"kind": "batch", "key": key, "step": step, "rank": rank, "loss": loss, "indices": known}
        return None

    def _signal(self, handover: Handover) -> RankStep:
        raw_evidence = handover.raw_evidence
        prints = {name: int(handover.print_of(value) or 0) for name, value in raw_evidence.weights.items()}
        if prints:
            self._audits.append((handover.step, prints))
        return replace(
            handover.signal(),
            backwards=raw_evidence.backwards,
            syncs=raw_evidence.syncs,
            passes=raw_evidence.passes,
            updates=raw_evidence.updates,
            lr=raw_evidence.lr,
            settings=raw_evidence.settings,
            part=raw_evidence.part,
            parts=raw_evidence.parts,
            reduced=handover.print_of(raw_evidence.reduced),
            used=handover.print_of(raw_evidence.used),
            weights=hash_of(list(prints.values())) if prints else None,
            state=handover.print_of(raw_evidence.state),
            buffers=handover.print_of(raw_evidence.buffers),
            start=handover.print_of(raw_evidence.start),
            weight_square=handover.number_of(raw_evidence.weight_square),
            **self._batch(raw_evidence.batches),
        )

    def _batch(self, pulls: Sequence[Pull]) -> dict[str, Any]:
        """The step's samples in numbers that can be compared."""
        # A batch may go through the model in pieces: what came from a loader counts, if anything did.
        loaded = [pull for pull in pulls if pull.loader is not None] or pulls
        known = [pull.indices for pull in loaded if pull.indices is not None]
        leaves = [leaf for pull in loaded for leaf in pull.leaves]
        sizes = [pull.samples for pull in loaded if pull.samples is not None]
        values: dict[str, Any] = {"samples": sum(sizes) if sizes else None}
        if known and len(known) == len(loaded):
            values["indices"] = hash_of([index for indices in known for index in indices])
            # Contents are read at heard steps alone; in between, the indices tell whether a batch comes again.
            values["fresh"] = self._index_lists.add(values["indices"])
        if leaves and _says_enough(leaves):
            content = digest([leaf.numbers for leaf in leaves])
            targets = [pull.leaves[-1] for pull in loaded if len(pull.leaves) > 1]
            target = digest([leaf.numbers for leaf in targets]) if targets else None
            values |= {
                "content": content,
                "targets": target,
                # Targets that come again and again, like places in a batch, say nothing of the samples.
                "target_rows": min(map(_rows, targets)) if target is not None and self._targets.add(target) else 0,
                "repeats": self._contents.first_step(content),
                "fresh": self._contents.add(content, self._step),
                "length": _length(leaves),
                "padding": _padding(leaves),
            }
        return values | _fed([pull.fed for pull in pulls if pull.fed is not None])

    def _facts(self, handover: Handover) -> list[Message]:
        facts = dict(handover.raw_evidence.facts)
        if handover.raw_evidence.initial is not None:
            facts["initial"] = {"weights": f"{(handover.print_of(handover.raw_evidence.initial) or 0) % 2**64:016x}"}
        return [self._told_again(fact_message(handover.step, topic, content)) for topic, content in facts.items()]

    def _told_again(self, message: Message) -> Message:
        """Ranks may tell the same thing at different steps: messages of a topic are matched by their number."""
        topic = message["topic"]
        self._told[topic] += 1
        return message | {"key": f"facts/{topic}/{self._told[topic]}"}

    def _data(self, handover: Handover) -> list[Message]:
        messages: list[Message] = []
        drawn: list[int] = []
        for pull in handover.raw_evidence.evaluated:
            self._evaluated_of(pull.dataset).add(pull.indices or ())
        for pull in handover.raw_evidence.batches:
            if pull.loader is not None:
                passes = self._passes_of(pull.loader)
                messages += self._turn_over(passes, pull, handover.step)
                passes.add(pull.indices or [])
                drawn += pull.indices or [] if pull.certain else []
        if drawn:
            kept = array("q", drawn[:REMEMBERED_INDICES])
            self._indices.append((handover.step, kept, handover.number_of(handover.loss)))
        return messages + self._progress(handover.step)

    def _passes_of(self, loader: int) -> EpochCoverage:
        """Of the newest loaders: a script may build one for every epoch."""
        passes = self._passes.setdefault(loader, EpochCoverage(loader))
        if len(self._passes) > MOST_PASSES:
            del self._passes[min(self._passes)]
        return passes

    def _turn_over(self, passes: EpochCoverage, pull: Pull, step: int) -> list[Message]:
        """A pass has ended and another begun."""
        if not (pull.first or passes.epoch < 0):
            return []
        messages = [self._coverage(passes, step, complete=True)]
        facts = passes.begin(pull.facts, pull.dataset)
        if max(passes.epoch, passes.number) > CLOSELY_FOLLOWED and step - self._last_told < COVERAGE_EVERY:
            return []
        self._last_told = step
        told = fact_message(step, "loader", facts) | {"key": f"facts/loader/{passes.number}/{passes.epoch}"}
        return [message for message in messages if message is not None] + [told]

    def _progress(self, step: int) -> list[Message]:
        """Now and then what has been drawn so far: a pass may take days."""
        if step == 0 or step % COVERAGE_EVERY:
            return []
        told = [self._coverage(passes, step, complete=False) for passes in self._passes.values()]
        return [message for message in told if message is not None]

    def _coverage(self, passes: EpochCoverage, step: int, complete: bool) -> Message | None:
        return passes.message(step, complete, self._evaluated_of(passes.dataset))

    def _evaluated_of(self, dataset: int) -> SampleDraws:
        """What was evaluated of a dataset; of a few of them."""
        if len(self._evaluated) >= MOST_DATASETS and dataset not in self._evaluated:
            return SampleDraws()
        return self._evaluated.setdefault(dataset, SampleDraws())

    def _streams(self, handover: Handover) -> Message:
        drawn = {
            f"{name} in {where}": state
            for where, (before, after) in handover.raw_evidence.streams.items()
            for name, state in consumed(before, after).items()
        }
        return {"kind": "streams", "key": f"streams/{handover.step}", "step": handover.step, "drawn": drawn}

    def _projections(self, handover: Handover) -> Message:
        values = {name: _floats(numbers) for name, numbers in handover.raw_evidence.projections.items()}
        return {"kind": "detail", "key": f"detail/{handover.step}", "step": handover.step, "projections": values}


class RecentNumbers:
    """The newest numbers, and the step at which each came first."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def first_step(self, number: int) -> int | None:
        return self._numbers.get(number)

    def add(self, number: int, step: int = 0) -> bool:
        """Whether it is new."""
        new = number not in self._numbers
        self._numbers[number] = self._numbers.pop(number, step)
        if len(self._numbers) > REMEMBERED_BATCHES:
            del self._numbers[next(iter(self._numbers))]
        return new


def fact_message(step: int, topic: str, facts: dict[str, str]) -> Message:
    return {"kind": "facts", "step": step, "topic": topic, "facts": facts}


def _says_enough(leaves: Sequence[Leaf]) -> bool:
    return sum(min(FEWEST_VALUES, rows(leaf.numbers)) for leaf in leaves) >= FEWEST_VALUES


def _rows(leaf: Leaf) -> int:
    complete = leaf.numbers.numel() == _product(leaf.shape)
    return rows(leaf.numbers.reshape(leaf.shape) if complete and leaf.shape else leaf.numbers)


def _length(leaves: Sequence[Leaf]) -> float | None:
    """Of sequences of tokens: a table of whole numbers."""
    tables = [leaf for leaf in leaves if len(leaf.shape) == 2 and not leaf.numbers.is_floating_point()]
    return float(tables[0].shape[1]) if tables else None


def _padding(leaves: Sequence[Leaf]) -> float | None:
    """By the targets that the loss leaves out, since they are what does not count; else by the mask."""
    tables = [leaf for leaf in leaves if len(leaf.shape) == 2]
    ignored = [leaf.numbers.eq(IGNORED) for leaf in tables if leaf.numbers.dtype is torch.int64]
    masks = [leaf.numbers.eq(0) for leaf in tables if leaf.name in MASKS or leaf.numbers.dtype is torch.bool]
    left_out = [one for one in ignored if one.any()] + masks
    return float(left_out[0].double().mean()) if left_out else None


def _fed(fed: Sequence[Tensor]) -> dict[str, float]:
    """How large the numbers are that the model got; nothing where they are not all finite."""
    if not fed:
        return {}
    numbers = torch.cat([one.double().flatten() for one in fed])
    if not numbers.isfinite().all():
        return {}
    return {"input_mean": float(numbers.mean()), "input_scale": float(numbers.std(correction=0))}


def _floats(numbers: Any) -> list[float]:
    return numbers.tolist() if isinstance(numbers, Tensor) else list(numbers)


def _product(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
