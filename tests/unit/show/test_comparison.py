"""Did the fix work? What is said of two runs, fed record by record."""

from dataclasses import replace

import pytest

from unisono.records import AttemptRecord, EndRecord, WorkerFacts
from unisono.show.analysis.comparison import compare
from unisono.show.analysis.run_digest import RunDigest
from unisono.show.analysis.scan_run import RunOverview
from unit.diagnose.rules.build import SHARDED, attempt, audit, facts, loader, step

HEALTHY = {"finite_W": (True,) * 4, "compared": 4, "fresh": True}
TWINS, OTHER_TWINS = (0, 1, 2, 1), (0, 1, 0, 3)


def run(records=(), started=1.0, head=None, ended="unknown"):
    """As a comparison sees it; an attempt of four workers comes first."""
    look = RunDigest()
    for record in (head or attempt(4), *records, EndRecord(1, 0, 1.0, 1, 1, 0, ended=ended)):
        look.see(record)
    return look.conclude(RunOverview("a-run", "train", started, 0))


def steps(count, start=0, **fields):
    return [step(number, **{**HEALTHY, **fields}) for number in range(start, start + count)]


def twins(count, start=0, who=TWINS):
    return steps(count, start, same_content_W=who)


def told(first, second):
    comparison = compare(run(first), run(second))
    return comparison.verdict, comparison.verdict_text


def test_a_finding_is_gone_where_its_check_passes_as_long_as_it_took():
    assert told(twins(60), steps(812)) == ("fixed", "fixed: UN101 is gone, checked over 812 steps")


def test_what_is_still_there_is_told_with_its_first_step():
    assert told(twins(60), twins(60)) == ("not-fixed", "not fixed: UN101 is still there, since step 0")


def test_gone_but_something_else_is_new():
    diverged = [audit(number, weights_W=(0, 0, 0, 3), **HEALTHY) for number in range(5, 60)]
    healthy = [audit(number, **HEALTHY) for number in range(5)]
    first = [replace(record, same_content_W=TWINS) for record in [audit(number, **HEALTHY) for number in range(60)]]
    word, text = told(first, healthy + diverged)
    assert (word, text) == ("new-fault", "UN101 is gone, but UN301 is new, since step 5")


def test_a_check_that_was_not_possible_proves_nothing():
    word, text = told(twins(60), [step(number, finite_W=(True,) * 4) for number in range(100)])
    assert word == "cannot-tell"
    assert text.startswith("cannot tell: UN101 could not be checked in the second run: it needs two batches per worker")


def test_a_run_that_is_shorter_than_the_fault_took_proves_nothing():
    late = steps(200) + twins(100, 200)
    expected = "the second run is shorter (40 steps) than UN101 took to show (202 steps)"
    assert told(late, steps(40)) == ("cannot-tell", f"cannot tell yet: {expected}")
    assert told(late, steps(201))[0] == "cannot-tell"
    assert told(late, steps(202)) == ("fixed", "fixed: UN101 is gone, checked over 202 steps")


def test_many_short_attempts_are_not_one_long_one():
    late = steps(200) + twins(100, 200)
    short = [record for number in (1, 2, 3) for record in (attempt(4, number=number), *steps(120))]
    assert "the second run is shorter (120 steps) than UN101 took" in told(late, short)[1]


def test_a_run_that_ends_before_the_step_of_the_fault_proves_nothing():
    word, text = told(twins(60, start=1000), steps(100))
    assert word == "cannot-tell"
    assert text == "cannot tell yet: the second run ends at step 99, and UN101 showed at step 1,001 of the first"


def test_a_check_that_stopped_early_proves_nothing():
    late = steps(200) + twins(100, 200)
    unchecked = [step(number, finite_W=(True,) * 4) for number in range(50, 400)]
    word, text = told(late, steps(50) + unchecked)
    assert word == "cannot-tell"
    assert text.endswith("the second run was checked for UN101 up to step 49, and it began at step 200 of the first")


def test_steps_are_counted_from_where_the_second_run_starts():
    assert told(twins(60), steps(50, start=1000))[1] == "fixed: UN101 is gone, checked over 50 steps"


def test_a_finding_on_other_ranks_has_moved():
    word, text = told(twins(60), twins(60, who=OTHER_TWINS))
    assert (word, text) == ("not-fixed", "not fixed: UN101 has moved from ranks 1, 3 to ranks 0, 2")
    (change,) = compare(run(twins(60)), run(twins(60, who=OTHER_TWINS))).changes
    assert (change.status, change.remarks) == ("moved", ("ranks 1, 3 before, ranks 0, 2 now",))


def test_a_finding_on_some_of_the_ranks_has_not_moved():
    (change,) = compare(run(twins(60)), run(twins(60, who=(0, 1, 1, 1)))).changes
    assert (change.status, change.remarks) == ("still-there", ("ranks 1, 3 before, ranks 1-3 now",))


def test_what_came_again_and_was_resolved_is_told_as_such():
    word, text = told(twins(60), twins(20) + steps(100, 20))
    assert (word, text) == ("partly-fixed", "partly fixed: UN101 came again (steps 0 to 19, resolved)")


def test_what_had_been_resolved_was_not_mended():
    word, text = told(twins(20) + steps(40, 20), steps(100))
    assert (word, text) == ("fixed", "fixed: UN101 has not come back, checked over 100 steps")


def test_severity_and_first_step_that_changed_are_told():
    lasting = steps(5) + steps(40, 5, finite_W=(True, True, False, True))
    once = steps(9) + steps(1, 9, finite_W=(True, True, False, True)) + steps(2, 10)
    (change,) = compare(run(lasting), run(once)).changes
    assert change.status == "still-there"
    assert change.remarks[:2] == ("was critical, is warning", "began at step 5 before, at step 9 now")


def test_one_gone_and_one_still_there():
    both = [replace(record, finite_W=(True, True, False, True)) for record in twins(60)]
    word, text = told(both, steps(60, finite_W=(True, True, False, True)))
    assert (word, text) == ("partly-fixed", "partly fixed: UN101 is gone, but UN404 is still there, since step 0")


TINY = loader(same={"dataset": "16"})


def test_what_is_only_information_now():
    second = [TINY, *steps(60, same_content_W=TWINS, samples_W=(8,) * 4)]
    assert told(twins(60), second) == ("fixed", "fixed: UN101 is only information now")
    assert told(second, twins(60)) == ("new-fault", "worse: UN101 is new, since step 0")


def test_information_is_no_fault():
    tiny = [TINY, *steps(60, same_content_W=TWINS, samples_W=(8,) * 4)]
    assert told(tiny, steps(60))[0] == "healthy"


RANK_0_EVERYWHERE = facts("loader", same={**SHARDED, "sampler rank": "0"})


def test_a_symptom_that_remains_alone_is_not_new():
    first, second = [RANK_0_EVERYWHERE, *twins(60, who=(0,) * 4)], [RANK_0_EVERYWHERE, *steps(60)]
    comparison = compare(run(first), run(second))
    assert comparison.verdict_text == "partly fixed: UN101 is gone, but UN106 is still there, since step 0"
    assert comparison.changes[-1].remarks == ("it was a symptom of UN101 in the first run",)


def test_a_finding_that_became_a_symptom_is_still_there():
    comparison = compare(run([RANK_0_EVERYWHERE, *steps(60)]), run([RANK_0_EVERYWHERE, *twins(60, who=(0,) * 4)]))
    assert comparison.verdict_text == "not fixed: UN106 is still there; UN101 is new, since step 0"
    assert comparison.changes[0].remarks == ("a symptom of UN101 now",)


def test_what_the_first_run_could_not_have_shown_is_not_called_new():
    word, text = told(steps(60), steps(200) + twins(100, 200))
    assert word == "new-fault"
    assert text == "UN101 is there, since step 200, which the first run could not have shown"
    unheard = [step(number, finite_W=(True,) * 4) for number in range(300)]
    assert told(unheard, twins(60))[1] == "UN101 is there, since step 0, which the first run could not have shown"


def test_worse_than_before():
    assert told(steps(60), twins(60)) == ("new-fault", "worse: UN101 is new, since step 0")


def test_both_healthy():
    word, text = told(steps(60), steps(60))
    assert word == "healthy"
    assert text.startswith("both healthy: ")
    assert text.endswith(" checks passed in both")


def test_what_came_and_went_in_the_second_run_is_told():
    assert told(steps(60), twins(20) + steps(40, 20))[1].endswith("in both; UN101 came up (steps 0 to 19, resolved)")


@pytest.mark.parametrize(("first", "second", "which"), [([], steps(60), "first"), (steps(60), [], "second")])
def test_where_nothing_could_be_checked_nobody_is_called_healthy(first, second, which):
    assert told(first, second) == ("cannot-tell", f"cannot tell: the {which} run is unheard: nothing was heard")


def test_a_run_that_did_not_end_well_is_not_called_healthy():
    comparison = compare(run(steps(60)), run(steps(60), ended="crashed"))
    assert comparison.verdict == "cannot-tell"
    assert comparison.verdict_text.startswith(
        "cannot tell: the second run is broken: the job crashed after step 59; 60 "
    )
    comparison = compare(run(twins(60)), run(steps(812), ended="killed"))
    assert comparison.verdict == "fixed"
    assert comparison.cautions == ("the second run: the job was killed after step 811",)


def test_numbers_are_compared_over_the_steps_that_both_have():
    first = [step(number, loss_mean=100.0 - number, effective_workers=2.0) for number in range(100)]
    second = [step(number, loss_mean=50.0 if number < 100 else -1.0, effective_workers=3.0) for number in range(5000)]
    comparison = compare(run(first), run(second))
    assert comparison.common_steps == range(100)
    assert (comparison.pair("loss_mean").first, comparison.pair("loss_mean").second) == (25.5, 50.0)
    assert comparison.effective_workers.ratio == 1.5


def test_runs_without_a_common_step_keep_their_own():
    comparison = compare(run(steps(50, loss_mean=1.0)), run(steps(50, start=100, loss_mean=2.0)))
    assert not comparison.common_steps
    assert comparison.pair("loss_mean").ratio == 2.0


def test_time_and_cost():
    comparison = compare(run(steps(60, step_W=(0.5,) * 4, same_content_W=(0,) * 4)), run(steps(60, step_W=(0.25,) * 4)))
    assert comparison.seconds_per_step.ratio == 0.5
    ((loss,), none) = comparison.lost
    assert (loss.code, loss.worker_seconds, loss.share, none) == ("UN101", 120.0, 0.75, ())


def head(world=4, parameters=100, torch="2.6"):
    workers = tuple(WorkerFacts(rank, "host", 7, f"cuda:{rank}") for rank in range(world))
    return AttemptRecord(1, 0.0, world, 0, workers, parameters=parameters, torch=torch, launcher=f"host:{parameters}")


def test_other_workers_and_another_model_are_told_in_words():
    comparison = compare(run(steps(1), head=head()), run(steps(1), head=head(world=2, parameters=2_000)))
    assert comparison.cautions == (
        "the first run had 4 workers, the second 2",
        "the models differ: 100 parameters in the first run, 2,000 in the second",
    )
    assert [setting.name for setting in comparison.settings] == ["workers", "parameters"]


def test_a_model_of_the_same_size_may_be_another():
    runs = [run([facts("model", same={"structure": name}), *steps(1)], head=head()) for name in ("aa", "bb")]
    assert "but other names, shapes or precision" in compare(*runs).cautions[0]
    assert compare(runs[0], run(steps(1), head=head())).cautions == ()


def test_runs_given_the_wrong_way_round_are_noticed():
    assert "the other way round" in compare(run(steps(1), started=2.0), run(steps(1), started=1.0)).cautions[0]
    assert compare(run(steps(1), started=1.0), run(steps(1), started=1.0)).cautions == ()


def test_where_the_settings_differ():
    first = [facts("optimizer", same={"class": "SGD", "lr": "0.1"}), loader(same={"pass": "1", "sampler epoch": "0"})]
    second = [
        facts("optimizer", same={"class": "SGD", "lr": "0.2"}),
        loader(same={"pass": "1", "sampler epoch": "1", "batch size": "4"}),
    ]
    differing = compare(run(first, head=head()), run(second, head=head(torch="2.7"))).settings
    assert [(setting.name, setting.first, setting.second) for setting in differing] == [
        ("torch", "2.6", "2.7"),
        ("optimizer: lr", "0.1", "0.2"),
        ("loader: batch size", "8", "4"),
        ("loader: sampler epoch", "0", "1"),
    ]


def test_how_far_a_run_has_come_is_no_setting():
    first = [loader(same={"pass": "0", "sampler epoch": "0"})]
    second = [loader(same={"pass": "3", "sampler epoch": "3"}), facts("parameters", same={"trainable": "6"})]
    assert compare(run(first), run(second)).settings == compare(run(second), run(first)).settings == ()


def test_each_loader_is_compared_with_its_own():
    training, evaluation = loader(), loader(same={"number": "1", "batch size": "99"})
    assert compare(run([training, evaluation]), run([evaluation, training])).settings == ()


def test_many_values_are_told_in_short():
    first, second = [loader(world=64)], [loader(world=64, leave_out=("sampler rank",))]
    (setting,) = compare(run(first), run(second)).settings
    assert (setting.first, setting.second) == ("0, 1, 2 and 61 more", "-")
