import pytest

from unisono.diagnose.rules.un301_replicas_diverged import ReplicasDiverged
from unit.diagnose.rules.build import attempt, audit, facts, judge, replicas, step

ONE, NONE_AGREE = (0, 0, 2, 0), (0, 1, 2, 3)


def measured(distance, weights_W=ONE, **fields):
    found = {"differing": 4, "parameters": ("a.weight", "a.bias", "b.weight", "b.bias"), "weights_W": weights_W}
    return replicas(distance_W=tuple(distance if twin else 0.0 for twin in weights_W), **{**found, **fields})


def test_the_minority_is_named_with_the_last_equal_step():
    found = judge(ReplicasDiverged, audit(0), audit(1), audit(2, weights_W=ONE), audit(3, weights_W=ONE))
    assert (found.severity, found.ranks, found.first_step, found.last_step) == ("critical", (2,), 2, 3)
    assert found.evidence["last_equal_step"] == 1
    assert found.why == "weights after step 2: rank 2 against ranks 0, 1 and 3, equal up to step 1"


def test_two_workers_are_undecidable():
    found = judge(ReplicasDiverged, audit(2, weights_W=(0, 1)), world=2)
    assert (found.ranks, found.evidence["undecidable"]) == ((), "between ranks 0 and 1")


@pytest.mark.parametrize(
    ("distance", "weights_W", "cause"),
    [
        (6e-8, ONE, "precision-drift"),
        (3e-2, ONE, "stale-or-missed-update"),
        (3e-2, NONE_AGREE, "never-synchronised"),
        (6e-8, (0, 1), "precision-drift"),
        (3e-2, (0, 1), "stale-or-missed-update"),
    ],
)
def test_causes(distance, weights_W, cause):
    world = len(weights_W)
    found = judge(ReplicasDiverged, audit(2, weights_W=weights_W), measured(distance, weights_W), world=world)
    assert found.causes[0].slug == cause


def test_the_parameters_are_named():
    found = judge(ReplicasDiverged, audit(2, weights_W=ONE), measured(0.03))
    assert "4 of 10 compared parameters differ (a.weight, a.bias, b.weight, ...), by 0.03 of their norm" in found.why
    assert found.evidence["distance"] == 0.03


def test_before_it_is_measured_equal_norms_speak_for_rounding():
    found = judge(ReplicasDiverged, audit(2, weights_W=ONE, weight_spread=1e-8))
    assert found.causes[0].slug == "precision-drift"


def test_other_parts_that_are_equal_do_not_resolve_it():
    parts = [audit(n, n % 5, 5, weights_W=ONE if n % 5 == 2 else ()) for n in range(20)]
    found = judge(ReplicasDiverged, *parts)
    assert (found.state, found.first_step) == ("open", 2)


def test_the_last_equal_step_is_that_of_the_same_part():
    parts = [audit(n, n % 5, 5, weights_W=ONE if n == 7 else ()) for n in range(8)]
    assert judge(ReplicasDiverged, *parts).evidence["last_equal_step"] == 2


def test_all_parts_equal_again_resolve_it():
    parts = [audit(n, n % 5, 5, weights_W=ONE if n == 2 else ()) for n in range(10)]
    assert judge(ReplicasDiverged, *parts).state == "resolved"


def test_everything_equal_again_resolves_it():
    assert judge(ReplicasDiverged, audit(0, weights_W=ONE), *map(audit, (1, 2, 3))).state == "resolved"


@pytest.mark.parametrize("fact", [{"averager": "yes"}, {"comm hook": "post_localSGD_hook"}])
def test_local_sgd_by_torchs_own_tools_is_healthy(fact):
    assert judge(ReplicasDiverged, facts("model", same=fact), audit(2, weights_W=NONE_AGREE)) is None


def local_steps(equal_at=7, syncs=0):
    syncs_W = (syncs,) * 4 if syncs != 1 else ()
    return [audit(n, syncs_W=syncs_W, weights_W=() if n == equal_at else NONE_AGREE) for n in range(12)]


def test_local_sgd_by_hand_is_recognised():
    found = judge(ReplicasDiverged, *local_steps())
    assert (found.severity, found.state) == ("info", "resolved")
    assert "local SGD" in found.why


def test_weights_that_never_become_equal_are_not_local_sgd():
    assert judge(ReplicasDiverged, *local_steps(equal_at=None)).severity == "critical"


def test_weights_that_become_equal_by_synchronised_steps_are_not_local_sgd():
    assert judge(ReplicasDiverged, *local_steps(syncs=1)).severity == "critical"


def test_healthy():
    assert judge(ReplicasDiverged, *map(audit, range(5)), step(6)) is None


def test_a_restart_with_equal_weights_resolves():
    records = audit(1, 2, 5, weights_W=ONE), attempt(number=2), *map(audit, (2, 3, 4))
    assert judge(ReplicasDiverged, *records).state == "resolved"


def test_the_first_measurement_decides():
    """What is apart by rounding grows."""
    found = judge(ReplicasDiverged, audit(2, weights_W=ONE), measured(6e-8), measured(0.1))
    assert found.causes[0].slug == "precision-drift"


def test_a_measurement_without_a_difference_is_nothing():
    assert judge(ReplicasDiverged, measured(0.1)) is None


def test_steps_without_a_comparison_do_not_make_it_local_sgd():
    apart = audit(0, syncs_W=(0,) * 4, weights_W=NONE_AGREE)
    assert judge(ReplicasDiverged, apart, step(1, syncs_W=(0,) * 4)).severity == "critical"


def test_skipped_steps_do_not_speak_against_local_sgd():
    records = local_steps()
    found = judge(ReplicasDiverged, *records[:4], step(4, skipped=True), *records[4:])
    assert found.severity == "info"
