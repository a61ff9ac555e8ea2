from unisono.records import FactsRecord
from unisono.rules.un402_gradient_vanishing import GradientVanishing
from unit.rules.streams import Run, causes, find


def vanishing():
    run = Run()
    run.norm[300:] *= 1e-6
    run.loss[:] = 2.3
    return run


def test_vanished_and_nothing_learnt():
    finding = find(GradientVanishing, vanishing())
    assert (finding.severity, finding.first_step, finding.ranks) == ("warning", 300, ())
    assert causes(finding)[0] == "dead-layers"


def test_half_precision_suspects_underflow():
    finding = find(GradientVanishing, vanishing(), FactsRecord(1, 0, 0.0, "model", same={"dtype": "torch.float16"}))
    assert causes(finding)[0] == "underflow"


def test_a_gradient_that_is_zero():
    run = vanishing()
    run.norm[300:] = 0
    assert find(GradientVanishing, run) is not None


def test_a_small_gradient_after_learning_is_success():
    run = vanishing()
    run.loss[200:] = 2.0
    assert find(GradientVanishing, run) is None


def test_tiny_from_the_start_is_only_a_unit():
    run = Run()
    run.norm *= 1e-9
    run.loss[:] = 2.3
    assert find(GradientVanishing, run) is None


def test_forty_readings_are_not_enough():
    run = Run()
    run.norm[300:340] *= 1e-6
    run.loss[:] = 2.3
    assert find(GradientVanishing, run) is None
