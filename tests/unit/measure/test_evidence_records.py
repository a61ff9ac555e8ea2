"""Messages of several ranks become one record, with and without those who are silent."""

import json
import math
import random

import pytest

from unisono.exchange.epoch_coverage import SampleDraws, share_of
from unisono.measure import evidence_records as assembly
from unisono.measure.evidence_records import MOST_NAMED, PATIENCE, EvidenceRecords, facts_record
from unisono.records import from_line, to_line

HEAD = {"attempt": 1, "step": 0, "time": 1.5}


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now

    def time(self):
        return 1.5


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(assembly, "time", clock)
    return clock


def assembled(*messages_W, expected=None):
    """The one record; `None` stands for a silent rank."""
    whole = EvidenceRecords(len(messages_W), attempt=1)
    for worker, message in enumerate(messages_W):
        if message is not None:
            whole.add(worker, json.loads(json.dumps(message)))
    known = [worker for worker, message in enumerate(messages_W) if message is not None]
    (record,) = whole.complete(known if expected is None else expected)
    written = from_line(to_line(record))
    assert to_line(written) == to_line(record)
    return written


def facts(**values):
    return {"kind": "facts", "key": "facts/loader/0", "step": 0, "topic": "loader", "facts": values}


def audit(**prints):
    return {"kind": "audit", "key": "audit/4", "step": 4, "prints": prints}


def detail(**projections):
    return {"kind": "detail", "key": "detail/4", "step": 4, "projections": projections}


def streams(**drawn):
    return {"kind": "streams", "key": "streams/2", "step": 2, "drawn": drawn}


def coverage(samples=(), evaluated=(), repeated=None, dataset=100):
    drawn, held = SampleDraws(), SampleDraws()
    drawn.add(samples)
    held.add(evaluated)
    return {
        "kind": "coverage",
        "key": "coverage/0/1/whole",
        "step": 30,
        "loader": 0,
        "epoch": 1,
        "complete": True,
        "draws": drawn.as_message(),
        "evaluated": held.as_message(),
        "dataset": dataset,
        "repeated": repeated,
    }


def test_a_matter_waits_for_all_who_are_expected(clock):
    whole = EvidenceRecords(3, attempt=1)
    whole.add(0, facts(a="1"))
    assert list(whole.complete({0, 1})) == []
    whole.add(1, facts(a="1"))
    (record,) = whole.complete({0, 1})
    assert record.same == {"a": "1"}
    assert list(whole.complete({0, 1})) == []


def test_a_matter_does_not_wait_for_ever(clock):
    whole = EvidenceRecords(2, attempt=1)
    whole.add(1, facts(a="1"))
    clock.now = PATIENCE - 0.1
    assert list(whole.complete({0, 1})) == []
    clock.now = PATIENCE + 0.1
    assert len(list(whole.complete({0, 1}))) == 1


def test_at_the_end_nothing_is_kept_back(clock):
    whole = EvidenceRecords(2, attempt=1)
    whole.add(0, facts(a="1"))
    whole.add(1, {**facts(a="1"), "key": "facts/loader/9"})
    assert len(list(whole.complete({0, 1}, everything=True))) == 2


def test_matters_with_different_keys_are_not_mixed(clock):
    whole = EvidenceRecords(2, attempt=1)
    for key in ("x", "y"):
        for worker in range(2):
            whole.add(worker, {**facts(a=key), "key": key})
    assert [record.same for record in whole.complete({0, 1})] == [{"a": "x"}, {"a": "y"}]


def test_facts_are_split_by_agreement():
    record = assembled(facts(a="1", b="1"), facts(a="1", b="2"))
    assert (record.topic, record.same, record.differ) == ("loader", {"a": "1"}, {"b": ("1", "2")})


def test_a_silent_rank_does_not_disagree():
    record = assembled(facts(a="1", b="1"), None, facts(a="1", b="2"))
    assert (record.same, record.differ) == ({"a": "1"}, {"b": ("1", None, "2")})


def test_a_fact_that_one_rank_does_not_have_is_a_difference():
    assert assembled(facts(a="1"), facts()).differ == {"a": ("1", "")}
    assert facts_record(HEAD, "model", [None, {"a": "1"}]).same == {"a": "1"}


def test_what_one_rank_alone_says_of_itself_is_not_what_the_others_have():
    """A job that is stopped in the middle of a step: one rank has begun its next epoch, the other has not."""
    record = facts_record(HEAD, "loader", [None, {"sampler rank": "1", "length": "8"}])
    assert (record.same, record.differ) == ({"length": "8"}, {"sampler rank": (None, "1")})
    alone = facts_record(HEAD, "loader", [{"sampler rank": "0"}])
    assert (alone.same, alone.differ) == ({"sampler rank": "0"}, {})


def test_streams_that_are_shared():
    record = assembled(streams(torch="x", numpy="1"), streams(torch="x", numpy="2"), None, streams(torch="y"))
    assert record.consumed == ("numpy", "torch")
    assert record.same == {"torch": (0, 0, None, 3)}


def test_streams_nobody_drew_from():
    record = assembled(streams(), streams())
    assert (record.consumed, record.same) == ((), {})


def test_coverage_of_parts_that_do_not_overlap():
    record = assembled(coverage(range(50)), coverage(range(50, 100)))
    assert (record.drawn_W, record.distinct_W, record.distinct) == ((50, 50), (50.0, 50.0), 100.0)
    assert (record.loader, record.epoch, record.complete, record.dataset) == (0, 1, True, 100)
    assert record.held_out is None


def test_coverage_of_parts_that_overlap():
    assert assembled(coverage(range(60)), coverage(range(40, 100))).distinct == pytest.approx(100)


def test_coverage_without_a_rank():
    record = assembled(coverage(range(50), repeated=True), None, coverage(range(50, 100), repeated=False))
    assert (record.drawn_W, record.repeated_W) == ((50, None, 50), (True, None, False))
    assert record.distinct == 100


def test_evaluation_samples_that_others_train_on():
    assert assembled(coverage(range(50), range(90, 100)), coverage(range(50, 95), range(90, 100))).held_out == 0.5
    assert assembled(coverage(range(90), range(90, 100)), coverage(range(90), range(90, 100))).held_out == 0.0


def test_evaluation_on_ones_own_training_samples_is_no_leak():
    assert assembled(coverage(range(50), range(50)), coverage(range(50), ())).held_out == 0.0


def test_a_single_rank_has_nobody_to_leak_from():
    assert assembled(coverage(range(50), range(50, 60))).held_out == 0.0


def test_parameters_that_differ_are_named_in_order():
    record = assembled(audit(a=1, b=2, c=3), audit(a=1, b=9, c=3), None, audit(a=1, b=2, c=8))
    assert (record.compared, record.differing, record.parameters) == (3, 2, ("b", "c"))
    assert record.weights_W == (0, 1, None, 3)
    assert record.distance_W == ()


def test_equal_parameters_are_told_as_equal():
    record = assembled(audit(a=1), audit(a=1))
    assert (record.compared, record.differing, record.parameters, record.weights_W) == (1, 0, (), ())


def test_only_a_few_are_named():
    names = [f"p{number}" for number in range(20)]
    record = assembled(audit(**dict.fromkeys(names, 1)), audit(**dict.fromkeys(names, 2)))
    assert (record.differing, record.parameters) == (20, tuple(names[:MOST_NAMED]))


def test_the_distance_is_from_the_majority():
    near, far = [3.0, 4.0], [3.0, 9.0]
    record = assembled(detail(a=far, b=[1.0]), None, detail(a=near, b=[1.0]), detail(a=near, b=[1.0]))
    assert (record.compared, record.differing, record.parameters) == (2, 1, ("a",))
    assert record.weights_W == (0, None, 2, 2)
    assert record.distance_W == (1.0, None, 0.0, 0.0)


def test_equal_projections_have_no_distance():
    assert assembled(detail(a=[1.0]), detail(a=[1.0])).distance_W == ()


def test_distances_that_are_not_finite_can_be_written():
    assert assembled(detail(a=[0.0]), detail(a=[1.0])).distance_W[1] == math.inf
    record = assembled(detail(a=[1.0]), detail(a=[math.nan]), detail(a=[1.0]))
    assert math.isnan(record.distance_W[1])


def test_a_batch_needs_one_rank_only(clock):
    whole = EvidenceRecords(3, attempt=2)
    whole.add(1, {"kind": "batch", "key": "batch/7/1", "step": 7, "rank": 1, "loss": None, "indices": [4, 5]})
    (record,) = whole.complete({0, 1, 2})
    assert (record.attempt, record.step, record.rank, record.loss, record.indices) == (2, 7, 1, None, (4, 5))


def held_out_by_all_pairs(messages):
    """As the definition has it, at the price of looking at every pair."""
    shares = []
    for message in messages:
        others = [other["draws"] for other in messages if other is not message]
        own = share_of(message["evaluated"], [message["draws"]])
        shares.append(share_of(message["evaluated"], others) if own < assembly.OWN_SHARE else 0.0)
    return max(shares)


@pytest.mark.parametrize("seed", range(5))
def test_what_was_held_out_is_found_without_looking_at_pairs(seed):
    chance = random.Random(seed)
    messages = [
        coverage(
            samples=chance.sample(range(20_000), chance.choice([50, 3_000, 9_000])),
            evaluated=chance.sample(range(15_000, 25_000), chance.choice([40, 2_500])),
        )
        for _ in range(9)
    ]
    assert assembled(*messages).held_out == pytest.approx(held_out_by_all_pairs(messages))


def test_what_only_the_worker_itself_trains_on_is_not_held_against_the_others():
    messages = [coverage(samples=range(5), evaluated=range(1_000)), coverage(samples=range(2_000, 2_500))]
    assert assembled(*messages).held_out == 0.0
