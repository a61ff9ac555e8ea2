"""What is done to the workers' data and random streams, in one setting after the other.

A perturbation gives every rank its plan; from what the ranks have really drawn it is seen whether it happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from unisono.lab.experiments.silent_inconsistency.examples import Example, example

DROPPED = 0.1
"""Share of the prompt that a near copy lacks."""

KEPT_RESPONSE = 8
"""Tokens of a response that is cut short."""

Order = Callable[[Sequence[Example]], list[int]]


@dataclass(frozen=True)
class RankPlan:
    """How one rank gets its data and its random numbers."""

    sampler_seed: int
    sampler_rank: int
    dropout_seed: int
    examples: Sequence[Example]
    shard: tuple[int, ...] = ()
    """The rank's examples where they are divided by hand; without it a DistributedSampler divides them."""

    sets_epoch: bool = True


@dataclass(frozen=True)
class Ground:
    """What all settings of a seed start from."""

    seed: int
    workers: int
    length: int
    examples: Sequence[Example]
    by_difficulty: Order
    """Places of the examples, the easiest first."""

    @property
    def victim(self) -> int:
        return self.workers // 2

    @property
    def source(self) -> int:
        """The rank whose data the victim reads where it reads another's."""
        return self.victim - 1

    @cached_property
    def easiest(self) -> tuple[int, ...]:
        return tuple(self.by_difficulty(self.examples)[: len(self.examples) // self.workers])

    def draw(self) -> random.Random:
        return random.Random(f"{self.seed} perturbation")  # noqa: S311 (nothing secret is drawn)

    def healthy(self) -> list[RankPlan]:
        """One order for all, a part of it for each, and random numbers of one's own."""
        return [RankPlan(self.seed, rank, 1000 * self.seed + rank, self.examples) for rank in range(self.workers)]

    def divided_by_hand(self) -> list[RankPlan]:
        order = self.draw().sample(range(len(self.examples)), len(self.examples))
        return [replace(plan, shard=tuple(order[rank :: self.workers])) for rank, plan in enumerate(self.healthy())]

    def with_victims(self, examples: Sequence[Example]) -> list[RankPlan]:
        plans = self.healthy()
        plans[self.victim] = replace(plans[self.victim], examples=examples)
        return plans


@dataclass(frozen=True)
class Drawn:
    """What the ranks report of a run that has ended."""

    indices_W: Sequence[Sequence[int]]
    """Of the first epoch, in order."""

    stale_W: Sequence[bool]
    """Whether all epochs had the order of the first."""

    stream_W: Sequence[str]
    """The state of the random stream in the end."""

    repeated_W: Sequence[float]
    """Share of a rank's samples that another rank has drawn in the same epoch."""

    altered_W: Sequence[float]
    """Share of a rank's samples that are not as they should be."""

    tokens_W: Sequence[float]
    """Response tokens of a sample."""

    @property
    def streams(self) -> int:
        return len(set(self.stream_W))


def drawn(
    ground: Ground,
    plans: Sequence[RankPlan],
    indices_W: Sequence[Sequence[int]],
    stale_W: Sequence[bool],
    stream_W: Sequence[str],
) -> Drawn:
    repeated_W, altered_W, tokens_W = [], [], []
    for rank, indices in enumerate(indices_W):
        elsewhere = {index for other, theirs in enumerate(indices_W) if other != rank for index in theirs}
        taken = [plans[rank].examples[index] for index in indices]
        meant = [ground.examples[index] if index < len(ground.examples) else None for index in indices]
        repeated_W.append(sum(index in elsewhere for index in indices) / len(indices))
        altered_W.append(sum(one != other for one, other in zip(taken, meant, strict=True)) / len(taken))
        tokens_W.append(sum(one.counted for one in taken) / len(taken))
    return Drawn(indices_W, stale_W, stream_W, repeated_W, altered_W, tokens_W)


@dataclass(frozen=True)
class Perturbation:
    what: str
    plans: Callable[[Ground], list[RankPlan]]
    fired: Callable[[Ground, Drawn], bool]
    code: str = ""
    """The finding that unisono should come to; empty where nothing is wrong."""

    at_fault: Callable[[Ground], tuple[int, ...]] = lambda ground: ()
    """Whom it should name; nobody where the fault is everybody's."""


def _is_healthy(ground: Ground, seen: Drawn) -> bool:
    wrong = (*seen.repeated_W, *seen.altered_W, *seen.stale_W)
    return not any(wrong) and seen.streams == ground.workers


def _desynchronised(ranks: int, seeds_too: bool) -> Perturbation:
    """The first ranks shuffle with seeds of their own; where all share one random stream, they also leave it."""

    def plans(ground: Ground) -> list[RankPlan]:
        made = ground.healthy()
        if seeds_too:
            made = [replace(plan, dropout_seed=1000 * ground.seed + 999) for plan in made]
        for rank in range(min(ranks, ground.workers)):
            seed = made[rank].sampler_seed + 1000 * (rank + 1)
            own = 1000 * ground.seed + rank
            made[rank] = replace(made[rank], sampler_seed=seed, dropout_seed=own)
        return made

    def fired(ground: Ground, seen: Drawn) -> bool:
        streams = min(ranks + 1, ground.workers) if seeds_too else ground.workers
        return min(seen.repeated_W[:ranks]) > 0.3 and seen.streams == streams

    def at_fault(ground: Ground) -> tuple[int, ...]:
        return tuple(range(ranks)) if 2 * ranks < ground.workers else ()

    what = f"{ranks} ranks shuffle with seeds of their own" if ranks > 1 else "rank 0 shuffles with a seed of its own"
    if seeds_too:
        what += "; dropout: the same seed everywhere but there"
    return Perturbation(what, plans, fired, "UN102", at_fault)


def _same_dropout(ground: Ground) -> list[RankPlan]:
    return [replace(plan, dropout_seed=1000 * ground.seed + 999) for plan in ground.healthy()]


def _duplicated(ground: Ground) -> list[RankPlan]:
    plans = ground.healthy()
    plans[ground.victim] = replace(plans[ground.victim], sampler_rank=ground.source)
    return plans


def _reads_the_same(ground: Ground, seen: Drawn) -> bool:
    return list(seen.indices_W[ground.victim]) == list(seen.indices_W[ground.source]) and not any(seen.altered_W)


def _identical(ground: Ground) -> list[RankPlan]:
    return [replace(plan, sampler_rank=0) for plan in _same_dropout(ground)]


def _all_read_the_same(ground: Ground, seen: Drawn) -> bool:
    return all(list(indices) == list(seen.indices_W[0]) for indices in seen.indices_W) and seen.streams == 1


def _near_copies(ground: Ground) -> list[RankPlan]:
    """Copies with a tenth of the prompt missing stand behind the examples, and are one rank's shard."""
    plans, draw = ground.divided_by_hand(), ground.draw()
    copied = plans[ground.source].shard
    copies = [_without_some(ground.examples[index], draw, ground.length) for index in copied]
    examples, first = [*ground.examples, *copies], len(ground.examples)
    plans = [replace(plan, examples=examples) for plan in plans]
    plans[ground.victim] = replace(plans[ground.victim], shard=tuple(range(first, first + len(copies))))
    return plans


def _without_some(one: Example, draw: random.Random, length: int) -> Example:
    prompt = list(one.tokens[: one.start])
    for _ in range(max(1, round(DROPPED * len(prompt)))):
        del prompt[draw.randrange(1, len(prompt))]
    return example(prompt, one.tokens[one.start :], length)


def _reads_copies(ground: Ground, seen: Drawn) -> bool:
    copied = dict(enumerate(ground.divided_by_hand()[ground.source].shard, start=len(ground.examples)))
    originals = [copied.get(index) for index in seen.indices_W[ground.victim]]
    return originals == list(seen.indices_W[ground.source]) and seen.altered_W[ground.victim] == 1


def _overlapping(ground: Ground) -> list[RankPlan]:
    """Parts of the right size, cut at half the distance."""
    plans = ground.divided_by_hand()
    order, size = [index for plan in plans for index in plan.shard], len(ground.examples) // ground.workers
    return [replace(plan, shard=tuple(order[rank * size // 2 :][:size])) for rank, plan in enumerate(plans)]


def _uneven_shards(ground: Ground) -> list[RankPlan]:
    easiest = set(ground.easiest)
    rest = [index for plan in ground.divided_by_hand() for index in plan.shard if index not in easiest]
    plans = ground.divided_by_hand()
    others = [rank for rank in range(ground.workers) if rank != ground.victim]
    for place, rank in enumerate(others):
        plans[rank] = replace(plans[rank], shard=tuple(rest[place :: len(others)]))
    plans[ground.victim] = replace(plans[ground.victim], shard=ground.easiest)
    return plans


def _wrong_labels(ground: Ground) -> list[RankPlan]:
    """Each example has its own tokens, and the labels of another one."""
    pairs = zip(ground.examples, _others(ground), strict=True)
    return ground.with_victims([_labelled(one, ground.examples[other]) for one, other in pairs])


def _labelled(one: Example, other: Example) -> Example:
    """The other's response as labels, again and again where it is shorter."""
    response = other.labels[other.start :]
    repeated = response * (1 + one.counted // len(response))
    return Example(one.tokens, (*one.labels[: one.start], *repeated[: one.counted]))


def _wrong_responses(ground: Ground) -> list[RankPlan]:
    pairs = zip(ground.examples, _others(ground), strict=True)
    return ground.with_victims([_answered(one, ground.examples[other], ground.length) for one, other in pairs])


def _answered(asked: Example, other: Example, length: int) -> Example:
    return example(asked.tokens[: asked.start], other.tokens[other.start :], length)


def _others(ground: Ground) -> list[int]:
    """For each example another one."""
    order = ground.draw().sample(range(len(ground.examples)), len(ground.examples))
    following = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [following[index] for index in range(len(order))]


def _short_responses(ground: Ground) -> list[RankPlan]:
    cut = [one.start + KEPT_RESPONSE for one in ground.examples]
    return ground.with_victims(
        [Example(one.tokens[:end], one.labels[:end]) for one, end in zip(ground.examples, cut, strict=True)]
    )


def _victim_altered(ground: Ground, seen: Drawn) -> bool:
    altered = [rank for rank, share in enumerate(seen.altered_W) if share > 0.9]
    return altered == [ground.victim] and not any(seen.repeated_W)


def _victim(ground: Ground) -> tuple[int, ...]:
    return (ground.victim,)


def _pair(ground: Ground) -> tuple[int, ...]:
    return (ground.source, ground.victim)


PERTURBATIONS: Mapping[str, Perturbation] = {
    "synchronised": Perturbation(
        "nothing: disjoint shards of one order, another dropout on every rank", Ground.healthy, _is_healthy
    ),
    "shuffling-1": _desynchronised(1, seeds_too=False),
    "shuffling-4": _desynchronised(4, seeds_too=False),
    "shuffling-8": _desynchronised(8, seeds_too=False),
    "shuffling-and-seeds-1": _desynchronised(1, seeds_too=True),
    "shuffling-and-seeds-4": _desynchronised(4, seeds_too=True),
    "shuffling-and-seeds-8": _desynchronised(8, seeds_too=True),
    "epoch-not-set": Perturbation(
        "`set_epoch` is called nowhere: every epoch has the same order",
        lambda ground: [replace(plan, sets_epoch=False) for plan in ground.healthy()],
        lambda ground, seen: all(seen.stale_W) and not any(seen.repeated_W),
        "UN103",
    ),
    "dropout-identical": Perturbation(
        "the same dropout seed on every rank",
        _same_dropout,
        lambda ground, seen: seen.streams == 1 and not any(seen.repeated_W),
        "UN201",
    ),
    "duplicated-shard": Perturbation("one rank reads another's shard", _duplicated, _reads_the_same, "UN101", _pair),
    "identical-shards": Perturbation(
        "every rank reads rank 0's shard, with the same dropout", _identical, _all_read_the_same, "UN101"
    ),
    "divided-by-hand": Perturbation(
        "nothing: disjoint shards as lists of indices, without a DistributedSampler",
        Ground.divided_by_hand,
        _is_healthy,
    ),
    "near-duplicated-shard": Perturbation(
        "one rank's shard holds near copies of another's, a tenth of the prompt dropped",
        _near_copies,
        _reads_copies,
        "UN101",
        _pair,
    ),
    "overlapping-shards": Perturbation(
        "each rank shares half of its shard with the next one",
        _overlapping,
        lambda ground, seen: min(seen.repeated_W) >= 0.5 and seen.streams == ground.workers,
        "UN102",
    ),
    "uneven-shards": Perturbation(
        "one rank has the examples that are easiest for the model before training",
        _uneven_shards,
        lambda ground, seen: set(seen.indices_W[ground.victim]) == set(ground.easiest) and not any(seen.repeated_W),
        "UN105",
        _victim,
    ),
    "wrong-labels": Perturbation(
        "one rank's labels are those of other examples", _wrong_labels, _victim_altered, "UN105", _victim
    ),
    "wrong-responses": Perturbation(
        "one rank's questions have the responses of other questions",
        _wrong_responses,
        _victim_altered,
        "UN105",
        _victim,
    ),
    "uneven-tokens": Perturbation(
        "one rank's responses are cut after eight tokens",
        _short_responses,
        lambda ground, seen: 2 * seen.tokens_W[ground.victim] < min(seen.tokens_W[: ground.victim]),
        "UN105",
        _victim,
    ),
}
