"""Each setting really does to the data and the random streams what it says, and would be caught if it did not."""

import hashlib

import pytest
import torch

from unisono.lab.experiments.silent_inconsistency.examples import (
    IGNORED,
    Example,
    ExampleDataset,
    example,
    generated_examples,
)
from unisono.lab.experiments.silent_inconsistency.perturbations import (
    KEPT_RESPONSE,
    PERTURBATIONS,
    Ground,
    drawn,
)
from unisono.lab.experiments.silent_inconsistency.training import Recipe, begin_epoch, loader_of, order_of

HEALTHY = ("synchronised", "divided-by-hand")
RECIPE = Recipe(batch=4, length=40, epochs=2, lr=0.1)


def longest_first(examples):
    return sorted(range(len(examples)), key=lambda index: -examples[index].counted)


@pytest.fixture(scope="module")
def ground():
    return Ground(3, 8, RECIPE.length, generated_examples(512, 300, RECIPE.length), longest_first)


def drawn_by(plans, ground):
    """What ranks with these plans draw, without training."""
    orders_W, stream_W = [], []
    for plan in plans:
        dataset = ExampleDataset(plan.examples, ground.length)
        loader = loader_of(dataset, plan, len(plans), RECIPE)
        for epoch in range(RECIPE.epochs):
            begin_epoch(loader, plan, epoch)
            for _ in loader:
                pass
        orders_W.append(order_of(dataset, RECIPE.epochs))
        state = torch.Generator().manual_seed(plan.dropout_seed).get_state()
        stream_W.append(hashlib.sha256(bytes(state.tolist())).hexdigest())
    return drawn(ground, plans, *([order[name] for order in orders_W] for name in ("indices", "stale")), stream_W)


@pytest.fixture(scope="module")
def seen(ground):
    return {name: drawn_by(one.plans(ground), ground) for name, one in PERTURBATIONS.items()}


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_it_happens(name, ground, seen):
    assert PERTURBATIONS[name].fired(ground, seen[name])


@pytest.mark.parametrize("name", [name for name in PERTURBATIONS if name not in HEALTHY])
def test_that_it_did_not_happen_would_be_seen(name, ground, seen):
    assert not any(PERTURBATIONS[name].fired(ground, seen[healthy]) for healthy in HEALTHY)


@pytest.mark.parametrize("name", [name for name in PERTURBATIONS if name not in (*HEALTHY, "uneven-shards")])
def test_a_healthy_setting_in_which_it_happened_would_be_seen(name, ground, seen):
    """But for uneven shards, which are disjoint like even ones."""
    assert not any(PERTURBATIONS[healthy].fired(ground, seen[name]) for healthy in HEALTHY)


def test_seeds_that_differ_on_more_ranks_share_more_samples(seen):
    shares = [sum(seen[f"shuffling-{ranks}"].repeated_W) / 8 for ranks in (1, 4, 8)]
    # Of n samples a rank takes n/8; a rank with an order of its own meets 7/8 of its samples elsewhere.
    assert shares == sorted(shares)
    assert 0.15 < shares[0] < 0.3
    assert shares[2] == pytest.approx(1 - (7 / 8) ** 7, abs=0.06)


def test_the_paper_grades_from_the_same_random_numbers_everywhere(seen):
    assert [seen[f"shuffling-and-seeds-{ranks}"].streams for ranks in (1, 4, 8)] == [2, 5, 8]
    assert [seen[f"shuffling-{ranks}"].streams for ranks in (1, 4, 8)] == [8, 8, 8]


def test_only_the_victim_is_changed(ground, seen):
    for name in ("wrong-labels", "wrong-responses", "uneven-tokens", "near-duplicated-shard"):
        altered = [rank for rank, share in enumerate(seen[name].altered_W) if share]
        assert altered == [ground.victim], name
    easy = seen["uneven-shards"].tokens_W
    assert max(range(8), key=easy.__getitem__) == ground.victim


def test_wrong_labels_keep_the_tokens_and_the_places_that_count(ground):
    plans = PERTURBATIONS["wrong-labels"].plans(ground)
    for one, meant in zip(plans[ground.victim].examples, ground.examples, strict=True):
        assert one.tokens == meant.tokens
        assert [label == IGNORED for label in one.labels] == [label == IGNORED for label in meant.labels]


def test_a_wrong_response_is_that_of_another_question(ground):
    plans = PERTURBATIONS["wrong-responses"].plans(ground)
    responses = {one.tokens[one.start :] for one in ground.examples}
    for one, meant in zip(plans[ground.victim].examples, ground.examples, strict=True):
        assert one.tokens[: one.start] == meant.tokens[: meant.start]
        assert one.tokens[one.start :] in responses


def test_a_near_copy_lacks_some_of_the_prompt(ground):
    plans = PERTURBATIONS["near-duplicated-shard"].plans(ground)
    examples, victim, source = plans[0].examples, plans[ground.victim], plans[ground.source]
    for copied, index in zip(victim.shard, source.shard, strict=True):
        copy, original = examples[copied], examples[index]
        assert copy.tokens[copy.start :] == original.tokens[original.start :]
        assert copy.start == original.start - 1
        assert copy.tokens[0] == original.tokens[0]


def test_short_responses_are_a_few_tokens_long(ground):
    plans = PERTURBATIONS["uneven-tokens"].plans(ground)
    assert {one.counted for one in plans[ground.victim].examples} == {KEPT_RESPONSE}


def test_whom_to_name(ground):
    named = {name: one.at_fault(ground) for name, one in PERTURBATIONS.items() if one.at_fault(ground)}
    pair, victim = (3, 4), (4,)
    assert named == {
        "shuffling-1": (0,),
        "shuffling-and-seeds-1": (0,),
        "duplicated-shard": pair,
        "near-duplicated-shard": pair,
        "uneven-shards": victim,
        "wrong-labels": victim,
        "wrong-responses": victim,
        "uneven-tokens": victim,
    }


def test_an_example_counts_its_response_alone():
    assert example([1, 5], [6, 7], 3) == Example((1, 5, 6), (IGNORED, IGNORED, 6))
    assert example([1, 5], [6, 7], 8).counted == 2
    assert example([1, 5], [6, 7], 8).start == 2
