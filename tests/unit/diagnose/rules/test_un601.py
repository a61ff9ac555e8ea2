"""What steering decides, over hundreds of steps: one worker left out, most steps skipped, gradients that cancel."""

import numpy as np
import pytest
import torch

import invented_runs as invented
from unisono.act.weightings.consensus import distances
from unisono.diagnose.engine import diagnose
from unisono.diagnose.rules.un601_worker_rejected import WorkerRejected
from unit.diagnose.rules.build import attempt, checks, judge, step
from unit.diagnose.rules.streams import causes

WELL = (True,) * 4


def steered(left_out_T, workers=4, first=0, **fields):
    """Records of steps at which steering left out these workers; all of them: a skipped step."""
    for number, rejected in enumerate(left_out_T, start=first):
        kept = workers - len(rejected)
        weight_W = tuple(0.0 if one in rejected else 1 / kept for one in range(workers)) if 0 < kept < workers else ()
        base = {"finite_W": (True,) * workers, "kept_workers": kept, "weight_W": weight_W, "skipped": kept == 0}
        yield step(number, **base | fields)


def by_chance(rate_W, count=300, seed=0):
    random = np.random.default_rng(seed)
    return [tuple(np.flatnonzero(random.random(len(rate_W)) < rate_W).tolist()) for _ in range(count)]


def sequential(gradient_TWN, max_distance=0.97):
    """Who is rejected by the published filter: each worker against the mean of those accepted before it."""
    for gradient_WN in gradient_TWN:
        mean, accepted = gradient_WN[0], [0]
        for worker in range(1, len(gradient_WN)):
            one = gradient_WN[worker]
            if 1 - one @ mean / np.linalg.norm(one) / np.linalg.norm(mean) <= max_distance:
                mean = (mean * len(accepted) + one) / (len(accepted) + 1)
                accepted.append(worker)
        everybody = range(len(gradient_WN))
        yield tuple(one for one in everybody if len(accepted) == 1 or one not in accepted)


def test_a_worker_that_is_rejected_in_most_steps():
    found = judge(WorkerRejected, *steered(by_chance([0.05, 0.05, 0.05, 0.9], 500)))
    assert (found.severity, found.state, found.ranks) == ("warning", "open", (3,))
    assert found.why == "rank 3 has been rejected in 88 % of 200 steps, the others usually in 8 %"
    assert found.evidence == {"rejected_share": 0.885, "steps": 200, "usual_share": 0.075}
    assert causes(found) == ["data-conflicts", "faulty-worker"]


def test_it_says_since_when():
    steps = [*by_chance([0.1] * 4, 600, seed=3), *by_chance([0.1, 0.95, 0.1, 0.1], 300, seed=4)]
    found = judge(WorkerRejected, *steered(steps))
    assert found.ranks == (1,)
    assert 590 <= found.first_step <= 610


def test_it_is_resolved_when_the_worker_is_kept_again():
    steps = [*by_chance([0.9, 0, 0, 0], 300), *[()] * 250]
    assert judge(WorkerRejected, *steered(steps)).state == "resolved"


def test_two_of_eight_are_both_named_by_the_launchers_numbers():
    ranks = tuple(range(8, 16))
    records = steered(by_chance([0.1] * 6 + [0.8, 0.9]), workers=8)
    found = judge(WorkerRejected, attempt(8, ranks=ranks), *records)
    assert found.ranks == (14, 15)
    assert found.why.startswith("ranks 14 and 15 have each been rejected in at least")


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("workers", [2, 3, 4, 16])
def test_everybody_now_and_then_is_healthy(rate, workers):
    steps = [rejected for rejected in by_chance([rate] * workers, 4_000) if len(rejected) < workers]
    assert judge(WorkerRejected, *steered(steps, workers), world=workers) is None


@pytest.mark.parametrize("common", [0.5, 0.3, 0.15])
def test_the_published_filter_on_noise_is_healthy_though_it_prefers_the_first_worker(common):
    random = np.random.default_rng(1)
    gradient_TWN = random.standard_normal((3_000, 4, 100))
    gradient_TWN += common * random.standard_normal((3_000, 1, 100))
    steps = [rejected for rejected in sequential(gradient_TWN) if len(rejected) < 4]
    shares = [np.mean([worker in rejected for rejected in steps]) for worker in range(4)]
    assert shares[0] == 0
    assert max(shares) > 0.02
    assert judge(WorkerRejected, *steered(steps)) is None


def test_half_against_half_names_nobody():
    assert judge(WorkerRejected, *steered([(2, 3)] * 300)) is None


def test_steps_at_which_a_gradient_was_not_finite_belong_to_another_rule():
    assert judge(WorkerRejected, *steered([(3,)] * 300, finite_W=(True, True, True, False))) is None


def test_most_steps_skipped():
    everybody = (0, 1, 2, 3)
    steps = [*[()] * 300, *[everybody, everybody, everybody, ()] * 75]
    found = judge(WorkerRejected, *steered(steps))
    assert (found.severity, found.ranks) == ("warning", ())
    assert 298 <= found.first_step <= 302
    assert "skipped 150 of 200 steps" in found.why
    assert (found.evidence["skipped"], found.evidence["of_steps"]) == (150, 200)
    assert causes(found) == ["distance-too-strict", "small-batches"]
    assert any("max_distance" in remedy for remedy in found.remedies)


def test_skipped_steps_count_for_nobody():
    everybody = (0, 1, 2, 3)
    assert judge(WorkerRejected, *steered([everybody, (), ()] * 200)) is None
    found = judge(WorkerRejected, *steered([everybody, everybody, (2,)] * 200))
    assert found.ranks == (2,)
    assert found.evidence["rejected_share"] == 1.0


def test_skips_for_want_of_finite_gradients_have_another_cause():
    found = judge(WorkerRejected, *steered([(0, 1, 2, 3)] * 150, finite_W=(False,) * 4))
    assert causes(found) == ["gradients-not-finite"]


def test_gradients_that_cancel_each_other():
    records = steered([()] * 200, distance_W=(1.7, 1.9, None, 1.6))
    found = judge(WorkerRejected, *records)
    assert "cancel each other" in found.why
    assert found.evidence["opposed_share"] == 1.0
    assert causes(found)[0] == "nothing-left-in-common"


def test_two_workers_that_cancel_each_other_are_told_of_and_neither_is_named():
    """All their steps are skipped: each is far from the only other one."""
    distance_W = distances(torch.tensor([[1.0, -1.2], [-1.2, 4.0]]), kept=[])
    assert min(distance_W) == pytest.approx(1.6)
    found = judge(WorkerRejected, *steered([(0, 1)] * 150, workers=2, distance_W=tuple(distance_W)), world=2)
    assert "all workers were further than 1.5 from the others in 100 %" in found.why
    assert found.ranks == ()
    assert "nothing-left-in-common" in causes(found)


@pytest.mark.parametrize("distance_W", [(1.7, 1.9, 1.4, 1.8), (1.9, None, None, None), ()])
def test_single_distances_or_unknown_ones_are_healthy(distance_W):
    assert judge(WorkerRejected, *steered([()] * 200, distance_W=distance_W)) is None


def test_in_large_worlds_only_steps_count_of_which_it_is_known_who_was_left_out():
    world, known = 100, list(steered([(7,)] * 120, workers=100))
    silent = list(steered([(9,)] * 500, workers=100, first=120, weight_W=()))
    assert judge(WorkerRejected, *known, *silent, world=world).ranks == (7,)


def test_without_steering_it_is_not_possible():
    assert checks(WorkerRejected, *(step(number, finite_W=WELL) for number in range(300))) == 0
    verdict = diagnose(invented.steps(4, 300)).checks()["UN601"]
    assert verdict == "not-yet-possible: needs 100 steps with steering by a weighting, which is off unless asked for"


def test_with_steering_it_passes_after_a_hundred_steps():
    assert checks(WorkerRejected, *steered([()] * 99)) == 0
    assert checks(WorkerRejected, *steered([()] * 300)) > 0
    fields = invented.steered(4, lambda number: (number % 4,))
    assert diagnose([invented.attempt(4), *invented.steps(4, 300, **fields)]).checks()["UN601"] == "passed"


def test_a_restart_is_judged_anew():
    rejected = steered([(1,)] * 90), steered([(1,)] * 90, first=90)
    assert judge(WorkerRejected, attempt(4), *rejected[0], attempt(4, number=2), *rejected[1]) is None


def test_a_worker_whose_gradient_has_the_wrong_sign_gives_one_finding():
    known = {"compared": 4, "fresh": True}
    healthy = invented.steps(4, 150, **known, **invented.steered(4))
    faulty = invented.steps(4, 450, first=150, opposed=2, **known, **invented.steered(4, lambda number: (2,)))
    found = diagnose([invented.attempt(4), *healthy, *faulty]).findings()
    assert [(one.code, one.ranks) for one in found] == [("UN501", (2,))]
    assert "UN601" in found[0].evidence["symptoms"]
