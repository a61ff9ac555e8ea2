import math
from dataclasses import replace

import numpy as np
import pytest

from unisono.diagnose.engine import Diagnosis
from unisono.diagnose.rules.shared import gradient_outliers as _gradients
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.un501_outlier_worker import OutlierWorker
from unisono.diagnose.statistics import median_of_others
from unit.diagnose.rules.streams import Run, attempt, causes, find


@pytest.mark.parametrize(("factor", "delay"), [(1.1, 1000), (1.3, 120), (2, 40), (10, 10), (0.5, 40)])
@pytest.mark.parametrize("seed", range(2))
def test_names_the_worker_whose_gradient_is_scaled(factor, delay, seed):
    run = Run(steps=1200, seed=seed)
    run.norm[200:, 2] *= factor
    finding = find(OutlierWorker, run)
    assert finding.ranks == (2,)
    assert 200 <= finding.first_step < 200 + delay
    assert finding.state == "open"
    assert causes(finding)[0] == "faulty-device"
    assert finding.evidence["norm_to_others"] == pytest.approx(factor, rel=0.1)
    assert finding.severity == ("critical" if abs(math.log(factor)) > math.log(1.5) else "warning")


@pytest.mark.parametrize("workers", [3, 4, 8])
def test_a_fault_from_the_first_step_on(workers):
    run = Run(workers=workers)
    run.norm[:, 1] *= 3
    finding = find(OutlierWorker, run)
    assert (finding.ranks, finding.severity, finding.state) == ((1,), "critical", "open")


def test_a_zero_gradient():
    run = Run()
    run.norm[300:, 3] = 0
    finding = find(OutlierWorker, run)
    assert finding.ranks == (3,)
    assert finding.first_step < 305


def test_a_direction_of_its_own():
    run = Run()
    run.cos[300:, 1] -= 0.3
    finding = find(OutlierWorker, run)
    assert (finding.ranks, finding.severity) == ((1,), "critical")
    assert "direction" in finding.why


@pytest.mark.parametrize("workers", [2, 4])
def test_norms_that_vanish_everywhere_and_scatter_otherwise_are_nobodys_fault(workers):
    run = Run(workers=workers)
    scatter = np.random.default_rng(3).normal(size=run.norm[300:].shape)
    run.norm[300:] *= 1e-5 * np.exp(2 * scatter)
    assert find(OutlierWorker, run) is None


def test_a_worker_that_stays_apart_is_found_also_after_all_norms_have_changed():
    run = Run()
    run.norm[300:] *= 1e-5
    run.norm[300:, 2] *= 3
    assert find(OutlierWorker, run).ranks == (2,)


def test_a_higher_cosine_is_no_fault():
    run = Run()
    run.cos[300:, 1] += 0.3
    assert find(OutlierWorker, run) is None


def test_with_two_workers_nobody_is_named():
    run = Run(workers=2)
    run.norm[:, 1] *= 3
    finding = find(OutlierWorker, run)
    assert finding.ranks == ()
    assert finding.severity == "warning"
    assert finding.evidence["undecidable"] == "between ranks 0 and 1"
    assert "undecidable between ranks 0 and 1" in finding.why


def test_a_loss_that_is_off_as_well_is_left_to_uneven_shards():
    run = Run()
    run.norm[:, 1] *= 2
    run.loss[:, 1] *= 1.5
    assert find(OutlierWorker, run) is None


def test_without_losses_nothing_is_certain():
    run = Run(extra={"loss_W": (), "loss_mean": None, "loss_std": None})
    run.norm[:, 1] *= 3
    finding = find(OutlierWorker, run)
    assert (finding.ranks, finding.severity) == ((1,), "warning")
    assert "loss" not in finding.why


def test_smaller_batches_have_larger_norms():
    run = Run()
    run.samples[:, 1] = 4
    run.norm[:, 1] *= 1.4
    assert find(OutlierWorker, run) is None


def test_unknown_batches_are_not_certain():
    run = Run(extra={"compared": 0, "fresh": False})
    run.norm[:, 1] *= 3
    finding = find(OutlierWorker, run)
    assert (finding.ranks, finding.severity) == ((1,), "warning")


def test_a_repeated_batch_says_nothing():
    run = Run(extra={"fresh": False})
    run.norm[:, 1] *= 3
    assert find(OutlierWorker, run) is None


def test_two_of_six_workers():
    run = Run(workers=6)
    run.norm[:, 1:3] *= 2
    assert find(OutlierWorker, run).ranks == (1, 2)


def test_three_of_six_workers_are_no_minority():
    run = Run(workers=6)
    run.norm[:, 1:4] *= 2
    assert find(OutlierWorker, run) is None


def test_a_difference_too_small_to_matter():
    run = Run(noise=1e-4)
    run.norm[:, 1] *= 1.01
    assert find(OutlierWorker, run) is None


def test_resolves_when_the_fault_is_over():
    run = Run(steps=2000)
    run.norm[200:600, 2] *= 3
    finding = find(OutlierWorker, run)
    assert (finding.state, finding.ranks) == ("resolved", (2,))
    assert 600 <= finding.last_step < 800


def test_a_new_attempt_forgets():
    """Either part alone is too short for an alarm."""
    before, after = Run(steps=40), Run(steps=40, extra={"attempt": 2})
    before.norm[:, 2] *= 2
    after.norm[:, 2] *= 2
    whole = Run(steps=80)
    whole.norm[:, 2] *= 2
    assert find(OutlierWorker, whole) is not None
    assert find(OutlierWorker, after, *before.records()) is None


def windows(run, cos_of_1):
    """Records with summed directions in which rank 1 stands apart from step 320 on."""
    for record in run.records():
        cosines = [0.4, cos_of_1 if record.step >= 320 else 0.4, 0.38, 0.42]
        start, steps = record.step // 32 * 32, record.step % 32 + 1
        yield replace(record, window_start=start, window_steps=steps, window_cos_W=tuple(cosines))


def found_in(records, workers=4):
    run_state, rule = RunState(), OutlierWorker()
    for record in (attempt(workers), *records):
        run_state.see(record)
        rule.see(record, run_state)
    return rule.finding(run_state)


def test_a_wrong_sign_shows_in_summed_directions():
    run = Run(steps=600)
    run.cos[320:, 1] -= 0.015
    finding = found_in(windows(run, -0.6))
    assert (finding.ranks, finding.severity) == ((1,), "critical")
    assert "points against" in finding.why
    assert causes(finding)[0] == "different-computation"


def test_sums_alone_accuse_nobody():
    """Reading by reading the worker agrees with the others."""
    run = Run(steps=600)
    run.cos[320:, 1] += 0.015
    assert found_in(windows(run, -0.6)) is None


def test_where_in_the_model():
    run = Run(steps=600)
    run.norm[300:, 1] *= 2

    def layered(record):
        first, head = (2.0 if record.step >= 300 else 1.0), 1.0
        return replace(record, norm_GW=((1.0, first, 1.0, 1.0), (1.0, head, 1.0, 1.0)))

    finding = found_in(map(layered, run.records()))
    assert "most in group 0 (x2), least in group 1 (x1)" in finding.why
    assert causes(finding)[0] == "data-of-another-kind"
    assert finding.severity == "warning"


def test_vanishing_gradients_on_several_workers_say_nothing():
    run = Run(steps=600)
    run.norm[300, 1] = run.norm[301, 2] = 0
    run.norm[302:320, 1] = 0
    assert find(OutlierWorker, run) is None


def test_a_large_difference_is_critical_only_when_it_lasts():
    run = Run(steps=240)
    run.norm[200:, 2] *= 3
    assert find(OutlierWorker, run).severity == "warning"
    run = Run(steps=300)
    run.norm[200:, 2] *= 3
    assert find(OutlierWorker, run).severity == "critical"


def test_nobody_is_judged_in_the_turmoil_after_the_learning_rate_jumped():
    run = Run(steps=600)
    run.norm[400:430, 1] *= 10
    assert find(OutlierWorker, run).ranks == (1,)
    run.lr[390:] *= 10
    assert find(OutlierWorker, run) is None


@pytest.mark.parametrize("value_W", [(3.0, 1.0), (1.0, 2.0, 4.0), (0.1, 0.7, 0.7, 0.2), (0.3, 0.1, 0.3, 0.3, 0.9)])
def test_gaps_to_the_others_are_worked_out_once_for_all_workers(monkeypatch, value_W):
    asked, gaps = [], _gradients.gaps_to_others
    monkeypatch.setattr(_gradients, "gaps_to_others", lambda value_W: asked.append(value_W) or gaps(value_W))
    row = (0, value_W, [])
    for worker, value in enumerate(value_W):
        assert _gradients._gap(row, worker) == value - median_of_others(value_W, worker)
    assert asked == [value_W]


def repeating(run, batches):
    """The same run, but after the first `batches` steps everything comes again, save for what a test spoils."""
    for values in (run.loss, run.norm, run.cos):
        values[:] = values[np.arange(run.steps) % batches]
    return run


def again(run, batches):
    """Its records, with the first step of each batch."""
    for record in run.records():
        old = record.step >= batches
        yield replace(record, fresh=not old, repeats=record.step % batches if old else None)


def judged(run, batches):
    rule, run_state = OutlierWorker(), RunState()
    for record in [attempt(run.workers), *again(run, batches)]:
        run_state.see(record)
        rule.see(record, run_state)
    return rule.finding(run_state), rule


@pytest.mark.parametrize("batches", [6, 12, 40])
@pytest.mark.parametrize("spoiled", ["norm", "cosine"])
def test_batches_that_come_again_have_one_say_each(batches, spoiled):
    run = repeating(Run(steps=400, noise=0.05), batches)
    if spoiled == "norm":
        run.norm[batches:, 2] *= 2
    else:
        run.cos[batches:, 2] -= 0.5
    finding, _ = judged(run, batches)
    assert (finding.ranks, finding.severity, finding.state) == ((2,), "warning", "open")
    assert f"{batches} batches that come again" in finding.why


@pytest.mark.parametrize("batches", [6, 12, 24])
@pytest.mark.parametrize("tails", [None, 3])
def test_batches_that_come_again_are_no_fault(batches, tails):
    for seed in range(40):
        finding, rule = judged(repeating(Run(steps=200, seed=seed, noise=0.3, tails=tails), batches), batches)
        assert finding is None
        assert rule.checks


def test_a_worker_that_repeats_other_data_is_not_accused():
    run = repeating(Run(steps=400, noise=0.05), 12)
    run.norm[:, 2] *= 2
    run.loss[:, 2] *= 1.5
    assert judged(run, 12)[0] is None


def scaled(run, factor, since=0, worker=2):
    run.norm[since:, worker] *= factor
    run.loss[since:, worker] *= factor
    return run


def with_groups(run):
    shares = np.array([0.8, 0.6])
    for record in run.records():
        norm_GW = tuple(tuple(share * norm for norm in record.norm_W) for share in shares)
        yield replace(record, norm_GW=norm_GW)


def diagnosed(records, workers=4):
    diagnosis = Diagnosis()
    for record in [attempt(workers, groups=("0", "1")), *records]:
        diagnosis.see(record)
    return diagnosis


@pytest.mark.parametrize(("factor", "since"), [(2, 0), (4, 0), (0.5, 0), (2, 300), (1.5, 0)])
def test_a_loss_of_another_scale(factor, since):
    diagnosis = diagnosed(with_groups(scaled(Run(steps=700), factor, since)))
    finding, *others = [one for one in diagnosis.findings() if one.at_least("warning")]
    assert "UN105" not in {one.code for one in others}
    assert (finding.code, finding.ranks, causes(finding)) == ("UN501", (2,), ["scaled"])
    assert finding.evidence["factor"] == pytest.approx(factor, rel=0.05)
    assert "accumulation steps" in finding.remedies[0]


def test_harder_data_are_no_scale():
    run = Run(steps=700)
    run.loss[:, 2] *= 1.5
    run.norm[:, 2] *= 1.3
    (finding,) = [one for one in diagnosed(with_groups(run)).findings() if one.at_least("warning")]
    assert (finding.code, causes(finding)[0]) == ("UN105", "different-data")


def test_layers_that_differ_are_no_scale():
    run = scaled(Run(steps=700), 2)
    records = []
    for record in run.records():
        bent = [1.0, 1.0, 1.4, 1.0]
        rows = (record.norm_W, tuple(norm * by for norm, by in zip(record.norm_W, bent, strict=True)))
        records.append(replace(record, norm_GW=rows))
    assert "scaled" not in {cause.slug for finding in diagnosed(records).findings() for cause in finding.causes}


MAKEUPS = {
    "tokens": {"length_W": (100.0,) * 4, "padding_W": (0.25, 0.25, 0.75, 0.25)},
    "scale": {"input_scale_W": (1.0, 1.0, 2.0, 1.0), "input_mean_W": (0.1,) * 4},
    "mean": {"input_scale_W": (1.0,) * 4, "input_mean_W": (0.1, 0.1, 0.6, 0.1)},
}


def made_of(run, makeup):
    """Records of batches that vary a little."""
    random = np.random.default_rng(0)
    for record in run.records():
        varied = {
            name: tuple((np.array(value_W) * np.exp(0.02 * random.standard_normal(4))).tolist())
            for name, value_W in makeup.items()
        }
        yield replace(record, **varied)


@pytest.mark.parametrize("name", MAKEUPS)
def test_batches_of_another_kind_are_no_fault_of_the_device(name):
    run = Run(steps=600)
    run.norm[:, 2] *= 1.8
    (finding,) = [one for one in diagnosed(made_of(run, MAKEUPS[name])).findings() if one.at_least("warning")]
    assert (finding.code, finding.ranks) == ("UN105", (2,))
    assert causes(finding)[0] == ("uneven-tokens" if name == "tokens" else "preprocessed-differently")


def test_a_summed_loss_of_longer_samples_is_no_scale():
    run = scaled(Run(steps=600), 3)
    records = made_of(run, {"length_W": (100.0, 100.0, 300.0, 100.0)})
    records = [replace(record, norm_GW=(record.norm_W, record.norm_W)) for record in records]
    found = {one.code: one for one in diagnosed(records).findings() if one.at_least("warning")}
    assert set(found) == {"UN105"}
    assert causes(found["UN105"])[0] == "uneven-tokens"


@pytest.mark.parametrize("name", MAKEUPS)
def test_what_batches_do_not_explain_is_still_told(name):
    run = Run(steps=600)
    run.norm[:, 1] *= 1.8
    assert "UN501" in {one.code for one in diagnosed(made_of(run, MAKEUPS[name])).findings() if one.ranks == (1,)}
