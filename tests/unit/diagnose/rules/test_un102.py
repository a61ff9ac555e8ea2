import pytest

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.un102_overlapping_shards import OverlappingShards
from unit.diagnose.rules.build import attempt, coverage, facts, judge, loader, step


def drawn(*distinct_W, together, each=2500, dataset=10_000, **fields):
    return coverage(drawn_W=(each,) * 4, distinct_W=distinct_W, distinct=together, dataset=dataset, **fields)


FULL = (2490.0, 2510.0, 2480.0, 2500.0)


def test_a_seed_of_its_own():
    found = judge(OverlappingShards, loader(sampler_seed="0070"))
    assert (found.severity, found.ranks, found.causes[0].slug) == ("critical", (2,), "sampler-seeds-differ")
    assert "7 on rank 2" in found.why


def test_seeds_that_all_differ_name_nobody():
    assert judge(OverlappingShards, loader(sampler_seed="0123")).ranks == ()


def test_two_seeds_are_undecidable():
    found = judge(OverlappingShards, loader(sampler_seed="01", world=2), world=2)
    assert (found.ranks, found.evidence["undecidable"]) == ((), "between ranks 0 and 1")


def test_lost_samples_are_counted():
    found = judge(OverlappingShards, loader(sampler_seed="0070"), drawn(*FULL, together=7_000.0))
    assert found.evidence["lost"] == 3000
    assert "about 3,000 were not seen" in found.why
    assert [cause.slug for cause in found.causes] == ["sampler-seeds-differ"]


def test_one_rank_forgot_set_epoch():
    second = {"pass": "1"}
    found = judge(OverlappingShards, loader(), loader(10, same=second, sampler_epoch="1101"))
    assert (found.ranks, found.causes[0].slug) == ((2,), "set-epoch-on-some-ranks")


@pytest.mark.parametrize(("epochs", "stuck"), [("1010", (1, 3)), ("1000", (1, 2, 3))])
def test_the_ranks_whose_epoch_stood_still_are_named_without_a_majority(epochs, stuck):
    found = judge(OverlappingShards, loader(), loader(10, same={"pass": "1"}, sampler_epoch=epochs))
    assert found.ranks == stuck


def test_the_order_of_the_epoch_before_on_one_rank():
    found = judge(OverlappingShards, loader(), coverage(repeated_W=(False, False, True, False)))
    assert (found.ranks, found.causes[0].slug) == ((2,), "set-epoch-on-some-ranks")


def test_the_order_of_the_epoch_before_on_all_ranks_is_anothers():
    assert judge(OverlappingShards, loader(), coverage(repeated_W=(True,) * 4)) is None


def test_evaluation_samples_of_others():
    found = judge(OverlappingShards, coverage(held_out=0.2))
    assert (found.ranks, found.causes[0].slug) == ((), "split-differs")
    assert found.evidence["held_out"] == 0.2


def test_parts_chosen_independently():
    found = judge(OverlappingShards, drawn(*FULL, together=7_000.0))
    assert found.causes[0].slug == "parts-overlap"


@pytest.mark.parametrize(("sampler", "checked"), [("DistributedSampler", True), ("SomebodysSampler", False)])
def test_torchs_sampler_without_shuffling_is_known_to_be_right(sampler, checked):
    rule, run_state = OverlappingShards(), RunState()
    for record in (attempt(4), loader(same={"shuffle": "no", "sampler": sampler})):
        run_state.see(record)
        rule.see(record, run_state)
    assert bool(rule.checks) is checked


PLAIN = {"leave_out": ("sampler rank", "sampler replicas"), "same": {"sampler": "RandomSampler"}}
CUSTOM = {"same": {"sampler": "WeightedShards"}}
HEALTHY = {
    "equal seeds": (loader(), drawn(*FULL, together=9_900.0)),
    "the count is a little off": (loader(), drawn(*FULL, together=9_500.0)),
    "no shuffle": (loader(same={"shuffle": "no"}, sampler_seed="0070"),),
    "each rank through its own part": (loader(same={"sampler replicas": "1"}, sampler_seed="0123"),),
    "passes that are not aligned": (loader(sampler_epoch="1101", **{"pass": "1101"}),),
    "with replacement": (loader(same={"replacement": "yes"}), drawn(*FULL, together=7_000.0)),
    "replacement that shows": (drawn(2000.0, 2000.0, 2000.0, 2000.0, together=6_000.0),),
    "replacement that cannot show yet": (loader(**CUSTOM), drawn(*FULL, together=8_600.0, dataset=30_000)),
    "everybody through everything": (loader(**PLAIN), drawn(*FULL, together=2_500.0, dataset=2_500)),
    "everybody through everything, begun": (loader(**PLAIN), drawn(*FULL, together=8_000.0, complete=False)),
    "presharded, counting from zero": (drawn(*FULL, together=2_500.0, dataset=2_500),),
    "padding of a tiny dataset": (
        loader(),
        coverage(drawn_W=(3,) * 4, distinct_W=(3.0,) * 4, distinct=9.0, dataset=9),
    ),
    "a length nobody knows": (drawn(*FULL, together=7_000.0, dataset=None),),
    "few evaluation samples": (coverage(held_out=0.03),),
    "another topic": (facts("model", sampler_seed="0070"),),
}


@pytest.mark.parametrize("records", HEALTHY.values(), ids=HEALTHY)
def test_healthy(records):
    assert judge(OverlappingShards, *records, step(11)) is None


def test_resolves():
    again = [loader(10 * n, same={"pass": str(n), "sampler epoch": str(n)}) for n in (2, 3, 4)]
    found = judge(OverlappingShards, loader(), loader(10, same={"pass": "1"}, sampler_epoch="1101"), *again)
    assert found.state == "resolved"


def test_two_workers_are_counted_too():
    halves = coverage(drawn_W=(500, 500), distinct_W=(500.0, 500.0), distinct=750.0, dataset=1000)
    assert judge(OverlappingShards, halves, world=2).evidence["lost"] == 250


def test_epochs_before_a_restart_do_not_count():
    records = attempt(), loader(), attempt(number=2), loader(10, sampler_epoch="0001")
    assert judge(OverlappingShards, *records).ranks == (3,)


def test_coverage_is_judged_by_the_facts_of_its_own_loader():
    """A divided loader beside one that goes through everything on every worker."""
    everything = facts("loader", 1, {"number": "1", "pass": "0", "sampler": "RandomSampler", "dataset": "64"})
    overlap = coverage(loader=1, drawn_W=(64,) * 4, distinct_W=(64.0,) * 4, distinct=64.0, dataset=64)
    assert judge(OverlappingShards, everything, loader(), overlap) is None


def test_samples_repeated_on_purpose_are_no_overlap():
    repeated = coverage(drawn_W=(80,) * 4, distinct_W=(80.0,) * 4, distinct=110.0, dataset=320)
    assert judge(OverlappingShards, loader(), repeated) is not None
    assert judge(OverlappingShards, loader(same={"repeats": "3"}), repeated) is None


def test_a_dataset_that_is_another_on_each_rank():
    found = judge(OverlappingShards, loader(), drawn(*FULL, together=7_000.0))
    assert [cause.slug for cause in found.causes] == ["dataset-differs-between-ranks"]
    assert "manual_seed(0)" in found.remedies[0]


def test_another_sampler_may_overlap_by_itself():
    own = loader(same={"sampler": "OwnSampler"})
    found = judge(OverlappingShards, own, drawn(*FULL, together=7_000.0))
    assert [cause.slug for cause in found.causes] == ["parts-overlap"]
