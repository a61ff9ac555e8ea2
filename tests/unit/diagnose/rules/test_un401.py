import numpy as np
import pytest

from unisono.diagnose.engine import diagnose
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.un401_gradient_explosion import ASKED, GradientExplosion
from unit.diagnose.rules.streams import Run, attempt, causes, find, judge


def exploding(raised=5.0, since=400):
    run = Run()
    run.norm[since:] *= 50
    run.loss[since + 1 :] *= raised
    return run


def test_an_explosion_is_critical():
    finding = find(GradientExplosion, exploding())
    assert (finding.severity, finding.ranks) == ("critical", ())
    assert finding.first_step == 400
    assert causes(finding)[0] == "learning-rate"
    assert "times the median of its last 50 calm readings" in finding.why
    assert "does not fall" in finding.why


def test_what_was_lost_stays_open():
    run = exploding()
    run.norm[410:] *= 0.01
    assert find(GradientExplosion, run).state == "open"
    run.loss[600:] *= 0.2
    assert find(GradientExplosion, run).state == "resolved"


def test_three_readings_are_a_remark():
    run = Run()
    run.norm[400:403] *= 50
    run.loss[400:403] *= 1.2
    finding = find(GradientExplosion, run)
    assert finding.severity == "info"
    assert "harder-data" in causes(finding)


@pytest.mark.parametrize("raised", [1, 5])
def test_one_spike_that_comes_back(raised):
    run = Run()
    run.norm[400] *= 50
    run.loss[400] *= raised
    finding = find(GradientExplosion, run)
    assert (finding.severity, finding.state) == ("info", "resolved")
    assert finding.first_step == finding.last_step == 400


def test_a_loss_that_is_raised_after_a_spike_speaks_of_momentum():
    run = Run()
    run.norm[400] *= 1000
    run.loss[405:470] *= 2
    finding = find(GradientExplosion, run)
    assert (finding.severity, causes(finding)[0], finding.first_step) == ("warning", "momentum", 400)
    assert "came back; the loss" in finding.why


def test_a_loss_that_was_raised_at_the_spike_does_not():
    run = Run()
    run.norm[400] *= 1000
    run.loss[400:470] *= 2
    finding = find(GradientExplosion, run)
    assert finding.severity == "info"
    assert causes(finding)[0] == "bad-data"


def test_one_worker_led():
    run = Run()
    run.norm[400:, 2] *= 100
    run.loss[400:] *= 5
    finding = find(GradientExplosion, run)
    assert finding.ranks == (2,)
    assert causes(finding)[0] == "bad-data"


def test_nobody_led_where_all_are_large():
    run = exploding()
    run.norm[400:, 2] *= 6
    assert find(GradientExplosion, run).ranks == ()


def test_an_earlier_spike_of_one_worker_is_not_the_explosion():
    run = exploding()
    run.norm[300, 2] *= 1000
    finding = find(GradientExplosion, run)
    assert (finding.severity, finding.ranks, finding.first_step) == ("critical", (), 400)


def test_a_later_spike_does_not_cover_the_explosion():
    run = exploding()
    run.norm[900] *= 100
    finding = find(GradientExplosion, run)
    assert finding.severity == "critical"
    assert "does not fall" in finding.why


def test_harder_data_are_a_remark():
    """The loss jumps at once and falls again."""
    run = Run()
    run.norm[400:] *= 20
    run.loss[400:] *= 1 + 5 * np.exp(-np.arange(600) / 30)[:, None]
    assert find(GradientExplosion, run).severity == "info"


def test_a_loss_that_goes_on_rising_is_a_warning():
    run = Run()
    run.norm[400:] *= 20
    run.loss[400:] *= (1.5 * 1.2 ** np.minimum(np.arange(600), 12))[:, None]
    run.loss[430:] *= np.exp(-np.arange(570) / 50)[:, None]
    finding = find(GradientExplosion, run)
    assert finding.severity == "warning"
    assert causes(finding)[0] == "learning-rate"


def test_numbers_that_are_no_longer_finite_are_critical():
    run = exploding(raised=2.0)
    run.finite[420:] = False
    finding = find(GradientExplosion, run)
    assert (finding.severity, finding.last_step) == ("critical", 421)
    assert "UN404" in GradientExplosion.explains


def test_says_where_it_grew():
    run = exploding()
    run.group_norm = np.ones((1000, 3))
    run.group_norm[400:] = (2, 90, 4)
    finding = judge(GradientExplosion, attempt(4, groups=("first", "middle", "head")), *run.records())
    assert finding.evidence["where"] == "most in middle (x90), least in first (x2)"


def test_a_larger_norm_while_the_loss_falls_is_a_remark():
    assert find(GradientExplosion, exploding(raised=0.5)).severity == "info"


def test_a_risen_loss_asks_for_closer_listening():
    run = Run(steps=700)
    run.loss[600:] *= 5
    run.heard[500:] = False
    rule, run_state, asked = GradientExplosion(), RunState(), []
    for record in run.records():
        run_state.see(record)
        rule.see(record, run_state)
        asked.append(rule.suspicious)
    assert asked.index(True) == 602
    assert not asked[-1]


def test_without_a_loss_ten_readings_are_a_warning():
    run = exploding()
    run.extra = {"loss_W": (), "loss_mean": None, "loss_std": None}
    assert find(GradientExplosion, run).severity == "warning"


def test_five_times_the_norm_is_no_explosion():
    run = Run()
    run.norm[400:] *= 5
    assert find(GradientExplosion, run) is None


def test_what_clipping_returned_is_preferred():
    run = Run(extra={"clip_norm": 1.0})
    run.norm[400:] *= 50
    assert find(GradientExplosion, run) is None


def test_a_larger_norm_after_a_jump_of_the_learning_rate_says_nothing():
    run = exploding(raised=1)
    run.lr[400:] *= 3
    assert find(GradientExplosion, run) is None


def test_an_explosion_after_a_jump_of_the_learning_rate():
    run = exploding()
    run.lr[400:] *= 30
    finding = find(GradientExplosion, run)
    assert (finding.severity, causes(finding)[0]) == ("critical", "learning-rate")


def test_a_second_stage_of_harder_data_at_a_lower_rate_is_no_explosion():
    run = Run()
    run.lr[400:] *= 0.1
    run.norm[400:] *= 5
    run.loss[400:] *= 4
    assert find(GradientExplosion, run) is None
    run.lr[400:] *= 100
    assert find(GradientExplosion, run).severity == "critical", "as it looks when the rate was raised"


@pytest.mark.parametrize("seed", range(8))
def test_losses_around_zero_do_not_grow_many_times(seed):
    """As those of policy gradients: their median is next to nothing, and any other is a multiple of it."""
    run = Run()
    run.loss = 0.05 * np.random.default_rng(seed).standard_normal((1000, 4))
    run.norm[400:420] *= 50
    assert find(GradientExplosion, run).severity == "info"


def test_a_loss_below_zero_that_is_back_where_it_began():
    """As that of a density."""
    run = exploding()
    run.loss = np.linspace(2, -5, 1000)[:, None] + 0.1 * np.random.default_rng(0).standard_normal((1000, 4))
    run.loss[402:] = 2
    assert find(GradientExplosion, run).severity == "critical"


def test_a_loss_that_rises_with_calm_gradients_is_no_explosion():
    run = Run()
    run.loss[400:] *= 5
    assert find(GradientExplosion, run) is None


def test_three_times_the_norm_and_nothing_left_of_what_was_learnt():
    run = Run()
    run.norm[400:] *= 5
    run.loss[400:] *= 5
    assert find(GradientExplosion, run) is None, "data that became harder look like this"
    run.lr[395:] *= 10
    assert find(GradientExplosion, run).severity == "critical"


def leading(run):
    return {found.code for found in diagnose([attempt(run.workers), *run.records()]).findings()}


def test_a_toxic_batch_leads_what_it_set_off():
    run = Run()
    run.norm[400, 1] *= 1000
    run.loss[400, 1] *= 100
    run.loss[405:470] *= 2
    assert find(GradientExplosion, run).severity == "warning"
    assert leading(run) == {"UN104"}


def test_an_explosion_leads_the_extreme_batches_that_follow():
    run = exploding()
    run.norm[480, 1] *= 1000
    run.loss[480, 1] *= 100
    assert leading(run) == {"UN401"}


def test_an_absurd_spike_of_one_worker_is_a_flipped_bit():
    """One reading, 10^8 times too large on one worker whose loss was as always: no batch does that."""
    run = Run()
    run.norm[300, 2] = 1e8
    finding = find(GradientExplosion, run)
    assert (finding.ranks, finding.severity, causes(finding)[0]) == ((2,), "warning", "faulty-device")


def test_harder_data_after_a_harmless_spike_are_not_its_work():
    """The spike is still being followed when, thirty steps later, everybody's loss rises at once."""
    run = Run()
    run.norm[400] *= 20
    run.norm[430:] *= 20
    run.loss[430:] *= 6
    finding = find(GradientExplosion, run)
    assert finding is None or finding.severity == "info"


def test_a_spike_in_a_wrecked_job_names_nobody():
    run = exploding()
    run.norm[700, 1] *= 1e6
    finding = find(GradientExplosion, run)
    assert (finding.severity, finding.ranks) == ("critical", ())


def rate_jumps(loss=5.0):
    run = Run()
    run.lr[300:] *= 60
    run.norm[300:] *= 6
    run.loss[302:] *= loss * 1.07 / (0.5 + 4 / (1 + np.arange(302, 1000) / 50))[:, None]
    return run


def test_much_of_what_was_learnt_is_gone_after_a_jump_of_the_learning_rate():
    """Six times the norm is not ten, and the loss is not quite back at its first values."""
    run = rate_jumps(loss=3.0)
    finding = find(GradientExplosion, run)
    assert (finding.severity, finding.state, causes(finding)[0]) == ("warning", "open", "learning-rate")
    assert "has risen to" in finding.why


def test_a_warm_restart():
    run = rate_jumps(loss=1.5)
    assert find(GradientExplosion, run) is None


@pytest.mark.parametrize("back_to", [2.2, 3.0])
def test_a_warm_restart_gives_back_what_it_took(back_to):
    """From 4.6 to 0.5, and down again."""
    run, time = Run(), np.arange(1000)
    run.lr[300:] *= 60
    run.norm[300:] *= 5
    run.loss[:300] = (0.5 + 4.1 * np.exp(-time[:300] / 40))[:, None]
    run.loss[300:] = (0.5 + (back_to - 0.5) * np.exp(-time[:700] / 130))[:, None]
    run.loss *= np.exp(0.03 * np.random.default_rng(0).standard_normal((1000, 4)))
    assert find(GradientExplosion, run) is None
    run.loss[300:] = back_to
    assert find(GradientExplosion, run).severity == "warning", "as an explosion looks"


def test_what_an_explosion_kills_is_told_as_the_explosion():
    """The weights are dead afterwards: no gradient, nothing learnt any more."""
    run = rate_jumps(loss=3.0)
    run.norm[360:] = 0
    found = {one.code: one for one in diagnose([attempt(run.workers), *run.records()]).findings()}
    assert set(found) == {"UN401"}
    assert "UN402" in found["UN401"].evidence["symptoms"]


def test_norms_that_always_jump_tenfold_are_no_explosion():
    run = Run()
    run.mean_norm = np.where(np.arange(1000) % 7 == 0, 30.0, 1.0)
    run.loss[::7] *= 3
    assert find(GradientExplosion, run) is None


def spiking(*steps, **fields):
    run = Run(noise=0.02, extra=fields)
    run.norm[list(steps)] *= 3
    rule, run_state = GradientExplosion(), RunState()
    for record in run.records():
        run_state.see(record)
        rule.see(record, run_state)
    return rule


def test_spikes_of_the_manuals_score_are_remarked_on_and_no_finding():
    rule = spiking(500, 800)
    assert rule.case is None
    assert rule.remark == (
        "GSS (gradient norm over its mean in the 100 readings before) above 2 at 2 of 900 readings: largest "
        f"{rule._score.largest:.3g} at step {rule._score._largest_at}, last at step 800"
    )


def test_a_huge_norm_does_not_spoil_the_score_of_later_ones():
    run = Run(noise=0.02)
    run.norm[200] = 1e20
    remark = diagnose([attempt(run.workers), *run.records()]).remarks()["UN401"]
    assert "above 2 at 1 of 900 readings" in remark


def test_without_a_spike_there_is_no_remark():
    assert spiking().remark == ""


def test_spikes_are_counted_where_an_explosion_is_told():
    assert find(GradientExplosion, exploding()).evidence["gss_above_2"] > 10


def test_a_remark_leaves_a_healthy_run_healthy():
    run = Run(noise=0.02)
    run.norm[500] *= 3
    diagnosis = diagnose([attempt(run.workers), *run.records()])
    assert "above 2 at 1 of" in diagnosis.remarks()["UN401"]
    assert diagnosis.checks()["UN401"] == "passed"
    assert "UN401" not in {one.code for one in diagnosis.findings()}


def test_losses_that_scatter_hardly_ask_for_closer_listening():
    run = Run(steps=4000)
    run.loss[:] = np.exp(0.5 * np.random.default_rng(0).standard_normal(4000))[:, None]
    rule, run_state, asked = GradientExplosion(), RunState(), 0
    for record in run.records():
        run_state.see(record)
        rule.on_step(record, run_state)
        asked += rule.suspicious
    assert asked <= ASKED


def test_a_loss_that_scatters_is_followed_by_its_norm_after_a_jump_of_the_learning_rate():
    """Never three losses in a row above all of the last 50: only the norm says where it began."""
    run = Run(noise=0.02)
    run.loss[100:300:9] *= 6
    run.lr[300:] *= 60
    run.norm[300:] *= 5
    run.loss[300:] *= np.where(np.arange(700) % 3, 2.5, 3.5)[:, None]
    assert find(GradientExplosion, run).severity == "warning"
