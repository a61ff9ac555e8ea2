import numpy as np

from unisono.diagnose.rules.un407_consistency_decline import ConsistencyDecline
from unit.diagnose.rules.streams import Run, causes, find


def declining(**extra):
    run = Run(steps=3000, extra=extra)
    run.share = 0.5 * np.exp(-np.arange(3000) / 1000)
    run.loss[:] = 2.3
    return run


def test_a_decline_without_learning_is_a_remark():
    finding = find(ConsistencyDecline, declining())
    assert (finding.severity, finding.ranks) == ("info", ())
    assert causes(finding)[0] == "plateau"


def test_a_warning_where_the_weights_differ():
    finding = find(ConsistencyDecline, declining(audits=("weights",), weights_W=(0, 0, 2, 0)))
    assert finding.severity == "warning"
    assert causes(finding)[0] == "replicas-differ"


def test_a_loss_that_rises_speaks_of_the_data():
    run = declining()
    run.loss *= np.exp(np.arange(3000) / 5000)[:, None]
    assert causes(find(ConsistencyDecline, run))[0] == "data-drift"


def test_few_readings_are_enough():
    run = declining()
    run.heard[100:] = np.arange(100, 3000) % 12 == 0
    assert find(ConsistencyDecline, run) is not None


def test_agreement_falls_as_the_loss_does():
    run = declining()
    run.loss *= np.exp(-np.arange(3000) / 5000)[:, None]
    assert find(ConsistencyDecline, run) is None


def test_a_level_cosine():
    run = declining()
    run.share[:] = 0.05
    assert find(ConsistencyDecline, run) is None
