import numpy as np
import pytest

from unisono.diagnose.rules.un101_duplicated_data import DuplicatedData
from unit.diagnose.rules.build import attempt, facts, judge, loader, step

PAIR = (0, 1, 2, 1)


def batch(number, **fields):
    return step(number, **{"compared": 4, "indexed": 4, "fresh": True, "samples_W": (8,) * 4, **fields})


def test_a_pair_that_shares_batches():
    found = judge(DuplicatedData, batch(0), *(batch(n, same_content_W=PAIR) for n in (10, 20)))
    assert (found.ranks, found.first_step, found.severity) == ((1, 3), 10, "critical")
    assert found.where == ("host1 cuda:1", "host3 cuda:3")


def test_one_equal_batch_is_not_enough():
    assert judge(DuplicatedData, batch(0, same_content_W=PAIR), batch(1)) is None


def test_batches_across_a_restart_are_not_in_a_row():
    records = attempt(), batch(0, same_content_W=PAIR), attempt(number=2), batch(1, same_content_W=PAIR)
    assert judge(DuplicatedData, *records) is None


def test_overfitting_one_batch_on_purpose_is_healthy():
    records = [batch(n, same_content_W=(0, 0, 0, 0), fresh=n == 0) for n in range(20)]
    assert judge(DuplicatedData, *records) is None


def test_equal_indices_of_presharded_data_are_healthy():
    records = [batch(n, same_indices_W=(0, 0, 0, 0), target_rows=8) for n in range(20)]
    assert judge(DuplicatedData, *records) is None


def test_augmented_inputs_with_equal_indices_and_targets():
    shared = {"same_indices_W": PAIR, "same_targets_W": PAIR, "target_rows": 7}
    found = judge(DuplicatedData, *(batch(n, **shared) for n in range(3)))
    assert (found.ranks, found.severity, found.causes[0].slug) == ((1, 3), "critical", "same-samples-augmented")


def test_unheard_steps_in_between_resolve_nothing():
    """Indices come at every step, targets only where batches are looked at."""
    shared = {"same_indices_W": PAIR, "same_targets_W": PAIR, "target_rows": 7}
    unheard = [step(n, indexed=4, same_indices_W=PAIR, heard=False) for n in range(3, 20)]
    assert judge(DuplicatedData, *(batch(n, **shared) for n in range(3)), *unheard).state == "open"


def test_equal_indices_and_targets_of_gradients_that_differ():
    shared = {"same_indices_W": PAIR, "same_targets_W": PAIR, "target_rows": 6}
    assert judge(DuplicatedData, *(batch(n, **shared, cos_expected=0.3) for n in range(60))) is None


NUMBERED = {"same_indices_W": (0,) * 4, "same_targets_W": (0,) * 4}


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_sample_number_in_the_place_of_the_target(pieces):
    """Files of their own, counted from zero on every worker; at first gradients agree on any data."""
    numbers = {**NUMBERED, "target_rows": 8 // pieces, "backwards_W": (pieces,) * 4 if pieces > 1 else ()}
    assert judge(DuplicatedData, *(batch(n, **numbers, cos_expected=0.9) for n in range(60))) is None


def test_targets_that_all_differ_of_gradients_that_agree_as_copies_do():
    found = judge(DuplicatedData, *agreeing(target_rows=16, **NUMBERED, indexed=4))
    assert (found.severity, found.causes[0].slug) == ("critical", "same-samples-augmented")


def without_indices(steps, **fields):
    shared = {"indexed": 0, "same_targets_W": (0,) * 4, "target_rows": 6, "cos_expected": 0.99, **fields}
    return judge(DuplicatedData, *(batch(n, **shared) for n in range(steps)))


def test_equal_targets_of_augmented_inputs_without_indices():
    found = without_indices(32)
    assert (found.ranks, found.severity, found.causes[0].slug) == ((0, 1, 2, 3), "critical", "same-samples-augmented")
    assert without_indices(31) is None


def test_equal_targets_of_gradients_that_differ():
    """A random number of one seed, drawn on all workers, may stand where the targets are."""
    assert without_indices(60, cos_expected=0.3) is None


def test_targets_that_do_not_vary():
    assert without_indices(60, target_rows=1) is None
    assert without_indices(60, target_rows=0) is None


def test_a_tiny_dataset_is_only_an_info():
    found = judge(DuplicatedData, loader(same={"dataset": "20"}), *(batch(n, same_content_W=PAIR) for n in (0, 1)))
    assert found.severity == "info"


def cause(record):
    return judge(DuplicatedData, record, *(batch(n, same_content_W=PAIR) for n in (0, 1))).causes[0].slug


def test_causes():
    assert cause(loader(ranks=(0, 1, 2, 1))) == "sampler-rank"
    assert cause(loader(leave_out=("sampler rank",), same={"sampler": "RandomSampler"})) == "no-distributed-sampler"
    assert cause(loader()) == "same-source"
    assert cause(facts("loader", same={"dataset kind": "iterable"})) == "iterable-not-sharded"


def test_resolves():
    found = judge(DuplicatedData, *(batch(n, same_content_W=PAIR) for n in (0, 1)), *map(batch, (2, 3, 4)))
    assert (found.state, found.last_step) == ("resolved", 1)


def test_equal_labels_of_other_samples_are_healthy():
    assert judge(DuplicatedData, *(batch(n, same_targets_W=PAIR, target_rows=8) for n in range(20))) is None


def agreeing(
    seed=0, steps=150, batch_size=16, noise_scale=0.0005, apart=0.002, shared_loss=0.1, own_loss=0.0, **fields
):
    """Losses that fall, with a part that a batch adds on all workers, and one of each worker's own."""
    random = np.random.default_rng(seed)
    for number in range(steps):
        common = 2 * np.exp(-number / 80) + 0.3 + shared_loss * random.standard_normal()
        loss_W = common + (apart + own_loss) * random.standard_normal(4)
        heard = {"noise_scale": noise_scale, "cos_expected": 1 / (1 + noise_scale), "effective_workers": 1.0}
        yield batch(
            number,
            samples_W=(batch_size,) * 4,
            loss_W=tuple(loss_W.tolist()),
            loss_mean=float(loss_W.mean()),
            loss_std=float(loss_W.std()),
            **heard,
            **{"indexed": 0, **fields},
        )


def test_gradients_and_losses_that_different_samples_cannot_have():
    found = judge(DuplicatedData, *agreeing(steps=100))
    assert (found.severity, found.state, found.ranks) == ("warning", "open", (0, 1, 2, 3))
    assert found.causes[0].slug == "same-samples-augmented"
    assert found.first_step <= 70


@pytest.mark.parametrize(
    "healthy",
    [
        {"batch_size": 8192},
        {"shared_loss": 0.0, "own_loss": 0.1},
        {"shared_loss": 0.0, "apart": 1e-4},
        {"noise_scale": 0.1},
        {"fresh": False},
        {"steps": 60},
    ],
    ids=["large batches", "own losses", "a smooth fall", "noisy gradients", "one batch on purpose", "the first steps"],
)
def test_numbers_that_different_samples_can_have(healthy):
    assert judge(DuplicatedData, *agreeing(**healthy)) is None


def test_indices_that_differ_are_believed_whatever_the_numbers_say():
    assert judge(DuplicatedData, *agreeing(indexed=4)) is None
    assert judge(DuplicatedData, *agreeing(indexed=3)).severity == "warning", "of one of them nothing is known"
    assert judge(DuplicatedData, *agreeing(indexed=4, same_indices_W=(0,) * 4)).severity == "warning"


def test_other_samples_after_all():
    assert (
        judge(DuplicatedData, *agreeing(), *agreeing(noise_scale=5.0, shared_loss=0, own_loss=0.1)).state == "resolved"
    )
