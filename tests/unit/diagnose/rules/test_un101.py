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
    shared = {"same_indices_W": PAIR, "same_targets_W": PAIR, "target_rows": 8}
    found = judge(DuplicatedData, *(batch(n, **shared) for n in range(3)))
    assert found.ranks == (1, 3)


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
