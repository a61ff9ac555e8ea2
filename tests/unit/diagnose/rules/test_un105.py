import pytest

from unisono.diagnose.rules.un105_uneven_shards import UnevenShards
from unit.diagnose.rules.streams import Run, causes, find


@pytest.mark.parametrize(("factor", "severity"), [(2, "warning"), (0.5, "warning"), (1.04, "info")])
@pytest.mark.parametrize("workers", [3, 4, 8])
def test_names_the_worker_whose_loss_stays_off(factor, severity, workers):
    run = Run(workers=workers, steps=2000)
    run.loss[200:, 2] *= factor
    finding = find(UnevenShards, run)
    assert (finding.ranks, finding.severity) == ((2,), severity)
    assert causes(finding)[0] == "different-data"
    assert "rank 2's loss is usually" in finding.why


def test_with_two_workers_nobody_is_named():
    run = Run(workers=2)
    run.loss[:, 0] *= 2
    finding = find(UnevenShards, run)
    assert finding.ranks == ()
    assert "undecidable" in finding.why
    assert finding.evidence["undecidable"] == "between ranks 0 and 1"


def test_unknown_batches_are_a_remark():
    run = Run(extra={"compared": 0, "fresh": False})
    run.loss[:, 2] *= 2
    assert find(UnevenShards, run).severity == "info"


def test_names_all_workers_of_a_minority():
    run = Run(workers=8)
    run.loss[:, :3] *= 2
    finding = find(UnevenShards, run)
    assert (finding.ranks, finding.severity) == ((0, 1, 2), "warning")
    assert "ranks 0, 1 and 2" in finding.why
    assert causes(finding)[0] == "not-shuffled"


def test_half_of_the_workers_apart_are_a_remark():
    run = Run(workers=8)
    run.loss[:, :4] *= 2
    finding = find(UnevenShards, run)
    assert (finding.ranks, finding.severity) == ((), "info")
    assert "ranks" in finding.why
    assert causes(finding)[0] == "not-shuffled"


def test_smaller_batches_of_one_worker():
    run = Run()
    run.samples[:, 3] = 4
    finding = find(UnevenShards, run)
    assert (finding.ranks, finding.severity, causes(finding)) == ((3,), "info", ["unequal-batches"])


def test_more_padding_on_one_worker():
    run = Run(extra={"padding_W": (0.1, 0.1, 0.4, 0.1), "length_W": (100.0, 100.0, 100.0, 100.0)})
    finding = find(UnevenShards, run)
    assert (finding.ranks, finding.severity, causes(finding)) == ((2,), "warning", ["uneven-tokens"])
    assert "(padding 0.4 against 0.1)" in finding.why


def test_longer_samples_on_one_worker():
    run = Run(extra={"length_W": (100.0, 300.0, 100.0, 100.0)})
    finding = find(UnevenShards, run)
    assert finding.ranks == (1,)
    assert finding.evidence == {"tokens_to_others": 3.0}


def test_a_short_spell_is_not_enough():
    run = Run()
    run.loss[300:308, 2] *= 1.3
    assert find(UnevenShards, run) is None


def test_batches_filled_by_length_differ_at_random():
    run = Run(steps=3000)
    run.samples += (run.loss * 1e6).astype(int) % 7
    assert find(UnevenShards, run) is None


def test_losses_below_zero_cannot_be_judged():
    run = Run()
    run.loss[:, 1] -= 100
    assert find(UnevenShards, run) is None
