import pytest

from unisono.diagnose.rules.un103_stale_shuffle import StaleShuffle
from unit.diagnose.rules.build import attempt, coverage, judge, loader


def passes(*epochs, at=10, **same):
    return [loader(at * n, same={"pass": str(n), "sampler epoch": epoch, **same}) for n, epoch in enumerate(epochs)]


def test_set_epoch_forgotten_by_all():
    found = judge(StaleShuffle, *passes("0", "0"))
    assert (found.severity, found.ranks, found.first_step) == ("warning", (), 10)
    assert found.causes[0].slug == "set-epoch-not-called"
    assert "sampler.set_epoch(epoch)" in found.remedies[0]


def test_the_same_order_without_a_visible_sampler():
    found = judge(StaleShuffle, coverage(repeated_W=(True,) * 4))
    assert (found.ranks, found.causes[0].slug) == ((), "generator-reseeded")


def test_the_same_order_from_a_sampler_with_epochs():
    found = judge(StaleShuffle, loader(), coverage(repeated_W=(True, True, True, False)))
    assert (found.ranks, found.causes[0].slug) == ((0, 1, 2), "set-epoch-not-called")


HEALTHY = {
    "set_epoch called": passes("0", "1", "2"),
    "no shuffle": passes("0", "0", shuffle="no"),
    "one batch": passes("0", "0", length="1"),
    "with replacement": passes("0", "0", replacement="yes"),
    "a batch was looked at before training": passes("0", "0", at=0),
    "two loaders": [loader(0), loader(10, same={"number": "1"})],
    "facts told twice": [loader(0), loader(10)],
    "a restart": [*passes("0"), attempt(number=2), *passes("0")],
    "another's: one rank forgot": [loader(), loader(10, same={"pass": "1"}, sampler_epoch="1101")],
    "another's: one rank repeats": [loader(), coverage(repeated_W=(False, False, True, False))],
    "other orders": [coverage(repeated_W=(False,) * 4)],
    "orders nobody knows": [coverage(repeated_W=(None,) * 4)],
    "no shuffle, same order": [loader(same={"shuffle": "no"}), coverage(repeated_W=(True,) * 4)],
}


@pytest.mark.parametrize("records", HEALTHY.values(), ids=HEALTHY)
def test_healthy(records):
    assert judge(StaleShuffle, attempt(), *records) is None


def test_resolves():
    assert judge(StaleShuffle, *passes("0", "0", "2", "3", "4")).state == "resolved"


def test_a_sampler_of_ones_own_may_have_a_fixed_order():
    found = judge(StaleShuffle, loader(leave_out=("shuffle", "sampler epoch")), coverage(repeated_W=(True,) * 4))
    assert found.severity == "info"
