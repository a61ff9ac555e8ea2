import pytest

from unisono.diagnose.rules.un002_ranks_disagree import RanksDisagree
from unit.diagnose.rules.build import checks, facts, judge, note, step


def test_a_rank_that_skips_alone():
    found = judge(RanksDisagree, step(3), step(4, skipped_W=(True, False, False, False)))
    assert (found.severity, found.ranks, found.first_step) == ("critical", (0,), 4)
    assert found.causes[0].slug == "decision-on-one-rank"
    assert "rank 0 took no optimizer step" in found.why


def test_two_workers_are_undecidable():
    found = judge(RanksDisagree, step(4, skipped_W=(True, False)), world=2)
    assert found.ranks == ()
    assert found.evidence["undecidable"] == "between ranks 0 and 1"
    assert "undecidable between ranks 0 and 1" in found.why


@pytest.mark.parametrize("field", ["passes_W", "updates_W"])
def test_ranks_that_count_differently(field):
    found = judge(RanksDisagree, step(4, **{field: (5, 5, 6, 5)}))
    assert (found.ranks, found.causes[0].slug) == ((2,), "decision-on-one-rank")


def test_counts_of_silent_ranks_are_no_disagreement():
    """Join: a rank without data left reports nothing any more."""
    assert judge(RanksDisagree, step(4, passes_W=(None, 6, 6, 6), skipped_W=(None, False, False, False))) is None


def test_steps_that_all_skip_are_healthy():
    assert judge(RanksDisagree, step(4, skipped=True)) is None


@pytest.mark.parametrize(
    ("topic", "name", "values", "severity", "cause"),
    [
        ("model", "structure", "aaba", "critical", "model-differs"),
        ("model", "dtype", ("f", "f", "b", "f"), "critical", "model-differs"),
        ("optimizer", "class", ("SGD", "SGD", "Adam", "SGD"), "critical", "optimizer-class-differs"),
        ("settings", "world", "4484", "critical", "world-differs"),
        ("settings", "torch", ("2.6", "2.6", "2.7", "2.6"), "warning", "versions-differ"),
        ("settings", "numpy", ("2.0", "2.0", "2.1", "2.0"), "warning", "versions-differ"),
        ("settings", "python", ("3.10.1", "3.10.1", "3.11.1", "3.10.1"), "warning", "versions-differ"),
        ("settings", "python", ("3.10.1", "3.10.1", "3.10.2", "3.10.1"), "info", "versions-differ"),
    ],
)
def test_facts_that_differ(topic, name, values, severity, cause):
    found = judge(RanksDisagree, facts(topic, **{name: values}))
    assert (found.severity, found.ranks, found.causes[0].slug) == (severity, (2,), cause)


def test_facts_stay_true_while_steps_pass():
    found = judge(RanksDisagree, facts("model", structure="aaba"), *map(step, range(5)))
    assert found.state == "open"


def test_all_differences_are_told_and_the_gravest_counts():
    found = judge(RanksDisagree, facts("settings", torch=("2.6", "2.7", "2.6", "2.6")), facts("model", dtype="ffbf"))
    assert found.severity == "critical"
    assert "torch is 2.7 on rank 1" in found.why
    assert "dtype is b on rank 2" in found.why


@pytest.mark.parametrize(
    "record",
    [
        facts("optimizer", lr=("0.1", "0.2", "0.1", "0.1"), numbers="abaa"),
        facts("model", same={"structure": "a"}),
        facts("model", structure=("a", None, "a", "a")),
        facts("loader", dtype="abaa"),
    ],
)
def test_quiet(record):
    assert judge(RanksDisagree, record, step(1)) is None


def test_resolves_when_all_count_alike_again():
    assert (
        judge(RanksDisagree, step(4, skipped_W=(True, False, False, False)), *map(step, (5, 6, 7))).state == "resolved"
    )
    assert judge(RanksDisagree, step(4, skipped_W=(True, False, False, False)), *map(step, (5, 6))).state == "open"


def test_facts_that_agree_count_as_a_check():
    assert checks(RanksDisagree, facts("model", same={"structure": "a"}), facts("loader")) == 1


def test_guards_that_hold_different_decisions():
    said = note("decisions-differ", 3, at=9, text="rank 3 holds other decisions than the first worker")
    found = judge(RanksDisagree, said, *map(step, range(10, 20)))
    assert (found.severity, found.ranks, found.first_step, found.state) == ("critical", (3,), 9, "open")
    assert (found.why, found.causes[0].slug) == (said.text, "guards-differ")


def test_other_notes_are_no_disagreement():
    assert judge(RanksDisagree, note("missing", 3)) is None
