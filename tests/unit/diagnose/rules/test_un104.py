import numpy as np
import pytest

from unisono.diagnose.rules.un104_toxic_batch import ToxicBatch
from unisono.records import BatchRecord
from unit.diagnose.rules.streams import Run, find


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_one_extreme_loss_is_a_remark(workers):
    run = Run(workers=workers)
    run.loss[400, 1] *= 8
    finding = find(ToxicBatch, run)
    assert (finding.ranks, finding.severity, finding.state) == ((1,), "info", "resolved")
    assert (finding.first_step, finding.last_step) == (400, 400)
    assert finding.evidence["loss_to_others"] == pytest.approx(8, rel=0.2)


def test_extreme_loss_and_norm_are_a_warning_with_the_samples():
    run = Run()
    run.loss[400, 1] *= 40
    run.norm[400, 1] *= 20
    finding = find(ToxicBatch, run, BatchRecord(1, 400, 0.0, 1, indices=(17, 93)))
    assert (finding.ranks, finding.severity) == ((1,), "warning")
    assert finding.evidence["indices"] == "17, 93"


def test_no_worse_than_an_untrained_model_is_a_remark():
    run = Run()
    run.loss[400, 1] *= 8
    run.norm[400, 1] *= 20
    finding = find(ToxicBatch, run)
    assert finding.severity == "info"
    assert set(finding.evidence) == {"loss_to_others", "norm_to_others", "batches"}


def test_a_damaged_model_afterwards_is_no_excuse():
    """What the batch did to the weights raises the loss of all workers alike."""
    run = Run()
    run.loss[400, 1] *= 100
    run.loss[401:440] *= 5
    assert find(ToxicBatch, run).ranks == (1,)


def test_losses_near_zero_are_restless_in_logarithms():
    run = Run(noise=3.0)
    run.loss *= 1e-2
    assert find(ToxicBatch, run) is None
    run.loss[400, 1] = 300
    assert find(ToxicBatch, run).ranks == (1,)


def test_heavy_tails_are_remarks_at_most():
    for seed in range(3):
        finding = find(ToxicBatch, Run(steps=2000, seed=seed, tails=2.0))
        assert finding is None or finding.severity == "info"


def test_counts_the_batches():
    run = Run()
    run.loss[400, 1] *= 8
    run.loss[500, 3] *= 8
    finding = find(ToxicBatch, run)
    assert finding.ranks == (1, 3)
    assert finding.evidence["batches"] == 2


def test_what_lasts_is_no_single_batch():
    run = Run(steps=430)
    run.loss[400:, 1] *= 8
    assert find(ToxicBatch, run) is None


def test_two_steps_in_a_row_are_no_single_batch():
    run = Run()
    run.loss[400:402, 1] *= 8
    assert find(ToxicBatch, run) is None


def test_all_workers_at_once_is_no_batch_of_one():
    run = Run()
    run.loss[400] *= 8
    assert find(ToxicBatch, run) is None


def test_twice_the_loss_is_not_extreme_in_a_noisy_run():
    run = Run(noise=1.0)
    run.loss[400, 1] *= 3
    assert find(ToxicBatch, run) is None


def test_a_worker_that_is_always_so():
    run = Run()
    run.loss[:, 1] *= 8
    assert find(ToxicBatch, run) is None


def test_a_worker_that_was_always_restless():
    run = Run()
    run.loss[:, 1] *= np.exp(0.3 * np.random.default_rng(0).standard_normal(run.steps))
    run.loss[400, 1] = 5 * run.loss[400, 0]
    assert find(ToxicBatch, run) is None


def test_a_short_last_batch_is_not_judged():
    run = Run()
    run.loss[400, 1] *= 8
    run.samples[400] = 1
    assert find(ToxicBatch, run) is None


def test_two_workers_at_once_are_no_batch_of_one():
    run = Run()
    run.loss[400, [1, 2]] *= (20, 8)
    assert find(ToxicBatch, run) is None


def test_one_batch_is_not_to_blame_where_all_losses_are_too_high():
    run = Run()
    run.loss[300:] *= 6
    run.loss[400, 1] *= 6
    run.norm[400, 1] *= 10
    assert find(ToxicBatch, run).severity == "info"
    run.loss[300:] /= 6
    run.loss[400, 1] *= 6
    assert find(ToxicBatch, run).severity == "warning"


def test_a_batch_is_not_to_blame_for_a_rate_that_has_just_jumped():
    run = Run()
    run.loss[400, 1] *= 36
    run.norm[400, 1] *= 10
    assert find(ToxicBatch, run).severity == "warning"
    run.lr[380:] *= 10
    assert find(ToxicBatch, run).severity == "info"
