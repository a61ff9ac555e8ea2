import pytest

from unisono.diagnose.rules.un302_gradients_not_synchronised import GradientsNotSynchronised
from unit.diagnose.rules.build import audit, facts, judge, replicas, step

ONE, NONE_AGREE, FOUR, ZERO = (0, 0, 2, 0), (0, 1, 2, 3), (4,) * 4, (0,) * 4


def test_two_steps_without_synchronisation():
    found = judge(GradientsNotSynchronised, audit(0), *(step(n, syncs_W=ZERO) for n in (1, 2)))
    assert (found.severity, found.ranks, found.first_step) == ("critical", (), 1)
    assert found.causes[0].slug == "no-sync-leak"


def test_one_such_step_is_not_enough():
    assert judge(GradientsNotSynchronised, step(1, syncs_W=ZERO), step(2), step(3, syncs_W=ZERO), step(4)) is None


def test_one_such_step_with_different_gradients_is():
    found = judge(GradientsNotSynchronised, audit(1, syncs_W=ZERO, used_W=NONE_AGREE))
    assert found.causes[0].slug == "no-sync-leak"


CAUSES = {
    "off by one: only the first of four is synchronised": ({"used_W": NONE_AGREE, "backwards_W": FOUR}, "no-sync-leak"),
    "flag after forward, gradients compared late": ({"reduced_W": NONE_AGREE, "backwards_W": FOUR}, "no-sync-leak"),
    "past the wrapper": ({"reduced_W": NONE_AGREE, "used_W": NONE_AGREE}, "forward-through-module"),
    "clipping": ({"used_W": ONE}, "clipping-on-some-ranks"),
    "clipping, with accumulation": ({"used_W": ONE, "backwards_W": FOUR}, "clipping-on-some-ranks"),
    "noise of their own": ({"used_W": NONE_AGREE}, "clipping-on-some-ranks"),
    "all-reduce went wrong": ({"reduced_W": ONE, "used_W": ONE}, "transfer-corrupted"),
    "two backward passes, both synchronised": (
        {"reduced_W": NONE_AGREE, "used_W": NONE_AGREE, "backwards_W": (2,) * 4, "syncs_W": (2,) * 4},
        "forward-through-module",
    ),
}


@pytest.mark.parametrize(("fields", "cause"), CAUSES.values(), ids=CAUSES)
def test_causes(fields, cause):
    found = judge(GradientsNotSynchronised, audit(1, **fields))
    assert (found.severity, found.causes[0].slug) == ("critical", cause)
    assert found.ranks == ((2,) if ONE in fields.values() else ())


def test_two_workers_are_undecidable():
    found = judge(GradientsNotSynchronised, audit(1, used_W=(0, 1)), world=2)
    assert (found.ranks, found.causes[0].slug) == ((), "clipping-on-some-ranks")
    assert found.evidence["undecidable"] == "between ranks 0 and 1"


def different(number=1, **fields):
    return audit(number, reduced_W=NONE_AGREE, used_W=NONE_AGREE, **fields)


def few(**fields):
    return replicas(differing=4, parameters=("probe.weight",), weights_W=NONE_AGREE, **fields)


def test_a_few_parameters_lie_outside_forward():
    found = judge(GradientsNotSynchronised, different(), few())
    assert found.causes[0].slug == "parameter-outside-forward"
    assert "probe.weight" in found.why


def test_nearly_all_parameters_do_not():
    found = judge(GradientsNotSynchronised, different(), few(compared=4))
    assert found.causes[0].slug == "forward-through-module"


def test_frozen_layers_do_not_speak_against_a_leak():
    found = judge(GradientsNotSynchronised, different(backwards_W=FOUR), few())
    assert found.causes[0].slug == "no-sync-leak"


def test_equal_parts_beside_a_different_one():
    parts = [audit(n, n % 5, 5, reduced_W=NONE_AGREE if n % 5 == 2 else ()) for n in range(12)]
    found = judge(GradientsNotSynchronised, *parts)
    assert (found.causes[0].slug, found.state) == ("parameter-outside-forward", "open")


HEALTHY = {
    "synchronised": [audit(n) for n in range(5)],
    "accumulation with no_sync": [audit(n, backwards_W=FOUR) for n in range(5)],
    "accumulation without no_sync": [audit(n, backwards_W=FOUR, syncs_W=FOUR) for n in range(5)],
    "skipped by the loss scaler": [step(n, syncs_W=ZERO, skipped=True) for n in range(5)],
    "silent ranks": [step(n, syncs_W=(None,) * 4) for n in range(5)],
    "torch's local SGD": [facts("model", same={"averager": "yes"}), *(step(n, syncs_W=ZERO) for n in range(5))],
}


@pytest.mark.parametrize("records", HEALTHY.values(), ids=HEALTHY)
def test_healthy(records):
    assert judge(GradientsNotSynchronised, *records) is None


def test_local_sgd_by_hand_is_recognised():
    records = [audit(n, syncs_W=ZERO, used_W=NONE_AGREE, weights_W=() if n == 7 else NONE_AGREE) for n in range(12)]
    found = judge(GradientsNotSynchronised, *records)
    assert (found.severity, found.state) == ("info", "resolved")
    assert "local SGD" in found.why


def test_resolves():
    found = judge(GradientsNotSynchronised, audit(0, used_W=ONE), *map(audit, (1, 2, 3)))
    assert (found.state, found.last_step) == ("resolved", 0)


def test_it_says_where_gradients_differ():
    after, equal = "gradients differ at the end of backward: ", ", though all-reduce had made them equal: "
    assert judge(GradientsNotSynchronised, audit(1, reduced_W=ONE)).why.startswith(after)
    assert equal in judge(GradientsNotSynchronised, audit(1, used_W=ONE)).why
    only_used = audit(1, used_W=ONE, audits=("used",))
    assert judge(GradientsNotSynchronised, only_used).why.startswith("gradients differ when the optimizer took them: ")


def test_comparisons_of_weights_alone_say_nothing_about_gradients():
    found = judge(GradientsNotSynchronised, audit(0, used_W=ONE), *(audit(n, audits=("weights",)) for n in range(1, 9)))
    assert found.state == "open"


def test_averaged_by_other_means_is_averaged():
    """All-reduce by hand, or a forward pass without gradients that changed DDP's flag."""
    by_hand = [audit(number, syncs_W=(0, 0, 0, 0)) for number in range(5)]
    assert judge(GradientsNotSynchronised, *by_hand) is None


@pytest.mark.parametrize("held", [{"same": {"replaced": "yes"}}, {"replaced": ("", "yes", "", "")}])
@pytest.mark.parametrize("when", ["before", "after"])
def test_parameters_that_were_replaced_after_wrapping(held, when):
    told, seen = facts("model", **held), different()
    found = judge(GradientsNotSynchronised, *([told, seen] if when == "before" else [seen, told]))
    assert [cause.slug for cause in found.causes] == ["parameters-replaced"]
    assert "before DistributedDataParallel(model)" in found.remedies[0]


def test_optimizers_that_step_on_parameters_in_their_place():
    told = facts("model", same={"replaced": "yes"})
    found = judge(GradientsNotSynchronised, told, *(step(n, syncs_W=ZERO) for n in (1, 2)))
    assert [cause.slug for cause in found.causes] == ["parameters-replaced"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_weights_that_wrapping_made_equal_are_no_local_sgd(when):
    told = facts("model", same={"wrapped": "again"})
    apart = audit(1, syncs_W=ZERO, used_W=NONE_AGREE, weights_W=NONE_AGREE)
    equal = audit(2, audits=("reduced", "used", "weights", "state", "start"))
    again = audit(3, syncs_W=ZERO, used_W=NONE_AGREE, weights_W=NONE_AGREE)
    records = [apart, told, equal, again] if when == "before" else [apart, equal, told, again]
    found = judge(GradientsNotSynchronised, *records)
    assert (found.severity, found.state, found.causes[0].slug) == ("critical", "open", "wrapper-stripped")
    assert "local SGD" not in found.why
