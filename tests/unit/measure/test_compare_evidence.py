"""The workers' own words, side by side."""

import math

import pytest

from unisono.listen.messages import AllRanksStep, RankStep
from unisono.measure.compare_evidence import compare, twins
from unisono.records import StepRecord, from_line, to_line

SILENT = None
EXACT = ("reduced", "used", "weights", "state", "buffers")


def said(**values):
    return RankStep(step=0, time=0.0, **values)


def compared(*signals):
    found = compare(AllRanksStep(0, signals))
    record = StepRecord(attempt=1, step=0, time=0.0, **found)
    assert from_line(to_line(record)) == record
    return record


def audited(**values):
    return said(part=0, parts=1, **values)


def test_nobody_has_spoken():
    assert compare(AllRanksStep(0, (None, None))) == {}


def test_twins():
    assert twins([7, 8, 7, None, 8]) == (0, 1, 0, None, 1)
    assert twins([]) == ()
    assert twins([None, 3]) == (None, 1)


def test_usual_steps_are_not_written_down():
    found = compared(said(), said(), SILENT)
    assert (found.syncs_W, found.backwards_W, found.passes_W, found.updates_W, found.skipped_W) == ((), (), (), (), ())


@pytest.mark.parametrize("name", ["syncs", "backwards"])
def test_unusual_counts_are_written_even_where_all_agree(name):
    assert getattr(compared(said(**{name: 4}), SILENT, said(**{name: 4})), f"{name}_W") == (4, None, 4)
    assert getattr(compared(said(**{name: 0}), said()), f"{name}_W") == (0, 1)


@pytest.mark.parametrize(("name", "values"), [("passes", (3, 4)), ("updates", (3, 4)), ("skipped", (True, False))])
def test_disagreement_is_written(name, values):
    one, other = values
    found = compared(said(**{name: one}), SILENT, said(**{name: other}))
    assert getattr(found, f"{name}_W") == (one, None, other)
    assert getattr(compared(said(**{name: one}), SILENT, said(**{name: one})), f"{name}_W") == ()


def test_a_learning_rate_is_one_number_where_all_agree():
    assert compared(said(lr=0.1), SILENT, said(lr=0.1)).lr == 0.1
    found = compared(said(lr=0.1), SILENT, said(lr=0.2))
    assert (found.lr, found.lr_W) == (None, (0.1, None, 0.2))


def test_settings_are_told_by_who_shares_them():
    assert compared(said(settings=5), said(settings=5)).settings_W == ()
    assert compared(said(settings=5), said(settings=6), SILENT, said(settings=5)).settings_W == (0, 1, None, 0)


def test_nothing_is_compared_where_nothing_was_taken():
    found = compared(said(weights=1), said(weights=2))
    assert (found.audits, found.parts, found.weights_W) == ((), 0, ())


def test_equal_prints_are_named_as_compared():
    values = dict.fromkeys(EXACT, 9)
    found = compared(audited(**values), audited(**values), SILENT)
    assert (found.audits, found.part, found.parts) == (EXACT, 0, 1)
    assert [getattr(found, f"{name}_W") for name in EXACT] == [()] * 5
    assert found.weight_spread is None


@pytest.mark.parametrize("name", EXACT)
def test_a_difference_names_those_who_share(name):
    found = compared(audited(**{name: 1}), SILENT, audited(**{name: 2}), audited(**{name: 1}))
    assert getattr(found, f"{name}_W") == (0, None, 2, 0)
    assert found.audits == (name,)


def test_one_voice_is_no_comparison():
    assert compared(audited(weights=1, used=4), SILENT, audited(used=4)).audits == ("used",)


def test_parts_that_do_not_match_are_not_compared():
    found = compared(said(part=1, parts=50, weights=1), said(part=2, parts=50, weights=2))
    assert (found.audits, found.weights_W) == ((), ())
    assert compared(audited(weights=1), said(weights=2)).weights_W == ()


@pytest.mark.parametrize(
    ("squares", "spread"),
    [((4.0, 1.0), 0.5), ((4.0, None), 0.0), ((math.inf, 1.0), None), ((math.nan, 4.0), 0.0), ((0.0, 0.0), None)],
)
def test_how_far_the_norms_are_apart(squares, spread):
    signals = [audited(weights=place, weight_square=square) for place, square in enumerate(squares)]
    assert compared(*signals).weight_spread == spread


@pytest.mark.parametrize("name", ["indices", "content", "targets"])
def test_shared_data_is_told(name):
    different = compared(*(said(**{name: number}) for number in (1, 2, 3)), SILENT)
    assert getattr(different, f"same_{name}_W") == ()
    shared = compared(said(**{name: 1}), SILENT, said(**{name: 2}), said(**{name: 1}))
    assert getattr(shared, f"same_{name}_W") == (0, None, 2, 0)


def test_who_is_not_known_shares_with_nobody():
    assert compared(said(content=None), said(content=None), SILENT).same_content_W == ()


def test_sizes_are_written_where_anybody_knows_them():
    found = compared(said(samples=4, length=7.0), SILENT, said(samples=3))
    assert (found.samples_W, found.length_W, found.padding_W) == ((4, None, 3), (7.0, None, None), ())


def test_how_many_could_be_compared():
    found = compared(
        said(content=1, indices=1, fresh=True, target_rows=5), said(content=2, fresh=True, target_rows=3), SILENT
    )
    assert (found.indexed, found.compared, found.fresh, found.target_rows) == (1, 2, True, 3)


def test_data_is_fresh_only_where_all_of_it_is():
    assert not compared(said(content=1, fresh=True), said(content=2)).fresh
    assert not compared(said(), said()).fresh
    assert compared(said(indices=1, fresh=True), said(indices=2, fresh=True)).fresh
    assert not compared(said(indices=1, fresh=True), said(indices=2)).fresh


def test_batches_come_again_where_they_do_for_all():
    assert compared(said(repeats=3), said(repeats=3)).repeats == 3
    assert compared(said(repeats=3), said(repeats=4)).repeats is None
    assert compared(said(repeats=3), said()).repeats is None
    assert compared(said(repeats=3), SILENT).repeats is None


def test_inputs_are_beside_each_other():
    found = compared(said(input_mean=0.5, input_scale=1.0), said(input_mean=0.25, input_scale=2.0))
    assert (found.input_mean_W, found.input_scale_W) == ((0.5, 0.25), (1.0, 2.0))
