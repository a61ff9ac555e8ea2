"""What the listening thread makes of the evidence: one signal a step, and messages as plain JSON."""

import json
import math

import pytest
import torch

from unisono.exchange.evidence_messages import CLOSELY_FOLLOWED, COVERAGE_EVERY, REMEMBERED_AUDITS, REMEMBERED_STEPS
from unisono.exchange.evidence_messages import EvidenceMessages as Clerk
from unisono.listen.clock import clock_for
from unisono.listen.evidence.batch_tracker import Leaf, Pull
from unisono.listen.evidence.raw_evidence import RawEvidence
from unisono.listen.evidence.rng_streams import snapshot
from unisono.listen.handover import Handover

CPU = torch.device("cpu")


def handover(step=0, loss=1.0, **raw_evidence):
    return Handover(
        step=step,
        time=0.0,
        due=True,
        window=0,
        skipped=False,
        cost=0.0,
        clock=clock_for(CPU),
        began=0.0,
        backward=None,
        ended=0.5,
        loss=loss,
        scale=None,
        clip_norm=None,
        finite_sum=None,
        reduced_share=None,
        readout=None,
        raw_evidence=RawEvidence(**raw_evidence),
    ).send(CPU)


def leaf(numbers, name=""):
    numbers = torch.as_tensor(numbers)
    return Leaf(name, tuple(numbers.shape), numbers.flatten())


def pull(indices=None, *tensors, loader=0, first=False, of=1, **facts):
    leaves = [leaf(tensor) for tensor in tensors]
    samples = len(indices) if indices is not None else None
    return Pull(loader=loader, first=first, indices=indices, samples=samples, leaves=leaves, facts=facts, dataset=of)


def signal(*pulls, evidence_messages=None):
    return (evidence_messages or Clerk()).take(handover(batches=list(pulls)))[0]


def tell(evidence_messages, step, *pulls, **raw_evidence):
    """The step's messages, as they arrive on rank 0."""
    messages = evidence_messages.take(handover(step, batches=list(pulls), **raw_evidence))[1]
    return json.loads(json.dumps(messages))


def keys(messages):
    return [message["key"] for message in messages]


X, Y = torch.arange(12.0).reshape(4, 3), torch.arange(4)


def test_a_statement_of_nothing_is_a_signal_of_nothing():
    found, messages = Clerk().take(handover())
    assert messages == []
    assert (found.loss, found.seconds, found.weights, found.content, found.samples) == (1.0, 0.5, None, None, None)


def test_what_was_taken_is_in_the_signal():
    found, _ = Clerk().take(
        handover(backwards=4, syncs=2, passes=7, updates=6, lr=0.1, settings=5, part=1, parts=9, reduced=-3, used=2**62,
               state=4, buffers=6, start=8, weight_square=2.5)
    )  # fmt: skip
    assert (found.backwards, found.syncs, found.passes, found.updates, found.lr, found.settings) == (4, 2, 7, 6, 0.1, 5)
    assert (found.part, found.parts, found.reduced, found.used, found.state) == (1, 9, -3, 2**62, 4)
    assert (found.buffers, found.start, found.weight_square) == (6, 8, 2.5)


def test_weights_are_one_number_that_depends_on_all():
    def weights(**prints):
        return Clerk().take(handover(weights=prints))[0].weights

    assert weights(a=1, b=2) == weights(a=1, b=2)
    assert len({weights(a=1, b=2), weights(a=2, b=1), weights(a=1, b=3), weights(a=1)}) == 4


def test_indices_of_all_batches_make_one_hash():
    assert signal(pull([1, 2]), pull([3])).indices == signal(pull([1, 2, 3])).indices
    assert signal(pull([1, 2])).indices != signal(pull([2, 1])).indices
    assert signal(pull([1, 2]), pull([3])).samples == 3


def test_indices_are_unknown_where_those_of_one_batch_are():
    assert signal(pull([1, 2]), pull(None)).indices is None


def test_contents_depend_on_inputs_and_targets():
    found = signal(pull([0], X, Y))
    assert found.content == signal(pull([5], X, Y)).content
    changed = signal(pull([0], X + 1, Y))
    assert changed.content != found.content
    assert changed.targets == found.targets
    assert signal(pull([0], X, Y + 1)).targets != found.targets
    assert found.target_rows == 4
    assert signal(pull([0], X)).targets is None


def test_targets_of_few_kinds_count_as_few():
    assert signal(pull([0], X, torch.tensor([1, 1, 0, 1]))).target_rows == 2


def test_targets_that_come_again_count_for_nothing():
    """Places in a batch, as in contrastive learning, are the same numbers on every worker and at every step."""
    evidence_messages = Clerk()
    found = [signal(pull([0], X + n, Y), evidence_messages=evidence_messages) for n in range(3)]
    assert [one.target_rows for one in found] == [4, 0, 0]
    assert len({one.targets for one in found}) == 1


def test_inputs_that_say_too_little_are_not_compared():
    assert signal(pull([0], torch.zeros(50))).content is None
    assert signal(pull([0], torch.tensor([1.0, 2.0, 3.0]))).content is None
    assert signal(pull([0], torch.tensor([1.0, 2.0, 3.0, 4.0]))).content is not None


def test_a_batch_of_which_only_the_indices_are_known_is_fresh_once():
    evidence_messages = Clerk()
    assert signal(pull([0, 1]), evidence_messages=evidence_messages).fresh
    assert signal(pull([2, 3]), evidence_messages=evidence_messages).fresh
    assert not signal(pull([0, 1]), evidence_messages=evidence_messages).fresh


def test_a_batch_is_fresh_once():
    evidence_messages = Clerk()
    assert signal(pull([0], X), evidence_messages=evidence_messages).fresh
    assert signal(pull([0], X + 1), evidence_messages=evidence_messages).fresh
    assert not signal(pull([0], X), evidence_messages=evidence_messages).fresh


def test_the_length_of_tables_of_whole_numbers():
    assert signal(pull([0], torch.arange(30).reshape(2, 15))).length == 15
    assert signal(pull([0], X)).length is None


def test_the_share_of_padding():
    mask = leaf([[1, 1, 0, 0], [1, 0, 0, 0]], "attention_mask")
    assert signal(Pull(leaves=[leaf(torch.arange(8).reshape(2, 4)), mask])).padding == 0.625


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.float64])
def test_inputs_of_any_type_can_be_compared(dtype):
    signal(pull([0], torch.arange(8).to(dtype)))


def test_inputs_that_are_not_finite_are_equal_to_themselves():
    broken = torch.tensor([math.nan, math.inf, 1.0, 2.0, 3.0])
    assert signal(pull([0], broken)).content == signal(pull([0], broken.clone())).content


def test_facts_are_told_by_topic():
    (told,) = tell(Clerk(), 3, facts={"optimizer": {"class": "SGD"}})
    assert told == {
        "kind": "facts",
        "key": "facts/optimizer/1",
        "step": 3,
        "topic": "optimizer",
        "facts": {"class": "SGD"},
    }


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1])
def test_initial_weights_are_a_text_of_fixed_length(number):
    (told,) = tell(Clerk(), 0, initial=number)
    assert told["topic"] == "initial"
    assert int(told["facts"]["weights"], 16) == number % 2**64
    assert len(told["facts"]["weights"]) == 16


def test_each_pass_is_told_when_the_next_begins():
    evidence_messages = Clerk()
    assert keys(tell(evidence_messages, 0, pull([1, 2], first=True, dataset="4"))) == ["facts/loader/0/0"]
    assert tell(evidence_messages, 1, pull([3, 4])) == []
    coverage, facts = tell(evidence_messages, 2, pull([1], first=True, dataset="4"))
    assert (coverage["key"], coverage["complete"], coverage["draws"]["drawn"]) == ("coverage/0/0/whole", True, 4)
    assert coverage["dataset"] == 4
    assert (facts["key"], facts["facts"]["pass"]) == ("facts/loader/0/1", "1")


def test_a_pass_that_began_unheard_is_told_too():
    assert keys(tell(Clerk(), 5, pull([1, 2], dataset="4"))) == ["facts/loader/0/0"]


def test_a_batch_from_nowhere_is_no_pass():
    assert tell(Clerk(), 0, pull([1], loader=None, first=True)) == []


def test_two_loaders_have_passes_of_their_own():
    evidence_messages = Clerk()
    tell(evidence_messages, 0, pull([1], first=True), pull([2], loader=1, first=True))
    assert keys(tell(evidence_messages, 1, pull([3], loader=1, first=True))) == [
        "coverage/1/0/whole",
        "facts/loader/1/1",
    ]


def test_a_long_pass_is_told_of_now_and_then():
    evidence_messages = Clerk()
    told = {
        step: tell(evidence_messages, step, pull([step], first=step == 0)) for step in range(2 * COVERAGE_EVERY + 1)
    }
    assert [step for step, messages in told.items() if messages] == [0, COVERAGE_EVERY, 2 * COVERAGE_EVERY]
    (message,) = told[COVERAGE_EVERY]
    assert (message["complete"], message["draws"]["drawn"]) == (False, COVERAGE_EVERY + 1)


def test_passes_of_one_batch_are_soon_told_less_often():
    evidence_messages = Clerk()
    told = [tell(evidence_messages, step, pull([1, 2], first=True)) for step in range(1, 1_001)]
    facts = [message for messages in told for message in messages if message["kind"] == "facts"]
    assert CLOSELY_FOLLOWED < len(facts) < CLOSELY_FOLLOWED + 30


def test_evaluated_samples_go_with_the_coverage():
    evidence_messages = Clerk()
    tell(evidence_messages, 0, pull([1, 2], first=True))
    told = tell(
        evidence_messages, 1, pull([3], first=True), evaluated=[pull([7, 8]), pull(None), pull([1, 2, 3], of=2)]
    )
    assert told[0]["evaluated"]["drawn"] == 2


def test_evaluated_samples_of_another_dataset_are_other_samples():
    evidence_messages = Clerk()
    tell(evidence_messages, 0, pull([1, 2], first=True))
    told = tell(evidence_messages, 1, pull([3], first=True), evaluated=[pull([1, 2], of=2)])
    assert told[0]["evaluated"]["drawn"] == 0


def test_endlessly_many_evaluated_datasets_take_bounded_memory():
    evidence_messages = Clerk()
    for step in range(1_000):
        tell(evidence_messages, step, evaluated=[pull([1], of=step)])
    assert len(evidence_messages._evaluated) < 100


def test_the_last_messages_tell_of_the_pass_under_way():
    evidence_messages = Clerk()
    assert evidence_messages.last_messages() == []
    tell(evidence_messages, 4, pull([1, 2], first=True))
    (message,) = evidence_messages.last_messages()
    assert (message["key"], message["step"], message["complete"]) == ("coverage/0/0/4/end", 4, False)


def test_streams_are_told_by_name_and_place():
    before = snapshot(CPU)
    torch.rand(1)
    after = snapshot(CPU)
    (told,) = tell(Clerk(), 9, streams={"forward": (before, after), "loading": (after, after)})
    assert told["key"] == "streams/9"
    assert list(told["drawn"]) == ["torch in forward"]


def test_streams_that_were_looked_at_and_not_drawn_from_are_told_as_well():
    state = snapshot(CPU)
    (told,) = tell(Clerk(), 9, streams={"forward": (state, state)})
    assert told["drawn"] == {}


def test_projections_are_plain_numbers():
    (told,) = tell(Clerk(), 2, projections={"a": (1.0, math.nan), "b": torch.tensor([3.0], dtype=torch.float64)})
    assert told["projections"]["b"] == [3.0]
    assert math.isnan(told["projections"]["a"][1])


def test_fingerprints_of_single_parameters_are_remembered_for_a_while():
    evidence_messages = Clerk()
    for step in range(REMEMBERED_AUDITS + 2):
        evidence_messages.take(handover(step, weights={"a": step}))
    assert evidence_messages.audit_of(1) is None
    assert evidence_messages.audit_of(2) == {"kind": "audit", "key": "audit/2", "step": 2, "prints": {"a": 2}}
    assert evidence_messages.audit_of(10**6) is None


def test_batches_are_remembered_for_a_while():
    evidence_messages = Clerk()
    for step in range(REMEMBERED_STEPS + 2):
        evidence_messages.take(handover(step, loss=float(step), batches=[pull([step, step + 1]), pull([7])]))
    assert evidence_messages.batch_of(1, rank=3) is None
    told = evidence_messages.batch_of(5, rank=3)
    assert (told["step"], told["rank"], told["loss"], told["indices"]) == (5, 3, 5.0, [5, 6, 7])


def test_a_step_without_indices_is_not_remembered():
    evidence_messages = Clerk()
    evidence_messages.take(handover(0, batches=[pull(None)]))
    assert evidence_messages.batch_of(0, rank=0) is None


def test_a_loss_that_is_not_finite_can_be_told():
    evidence_messages = Clerk()
    evidence_messages.take(handover(0, loss=math.nan, batches=[pull([1])]))
    assert math.isnan(json.loads(json.dumps(evidence_messages.batch_of(0, rank=0)))["loss"])


def test_what_the_loss_leaves_out_counts_as_padding():
    labels = torch.tensor([[-100, -100, 3, 4], [-100, 6, 7, 8]])
    assert signal(Pull(leaves=[leaf(torch.arange(8).reshape(2, 4)), leaf(labels)])).padding == 0.375


def test_a_mask_of_bools_needs_no_name():
    mask = leaf(torch.tensor([[True, True, False, False], [True, False, False, False]]))
    assert signal(Pull(leaves=[leaf(torch.arange(8).reshape(2, 4)), mask])).padding == 0.625


def test_a_batch_tells_when_it_was_read_before():
    messages = Clerk()
    told = []
    for batch in (X, X + 1, X, X):
        messages._step += 1
        told.append(messages._batch([pull([0], batch)])["repeats"])
    assert told == [None, None, 0, 0]


def test_mean_and_scale_of_what_the_model_got():
    found = signal(Pull(fed=torch.tensor([0.0, 2.0, 4.0, 6.0])))
    assert (found.input_mean, found.input_scale) == (3.0, pytest.approx(5**0.5))
    assert signal(Pull(fed=torch.tensor([1.0, float("nan")]))).input_mean is None
    assert signal(Pull()).input_mean is None


def test_of_prompts_and_padding_counts_what_the_loss_leaves_out():
    ids, mask = leaf(torch.arange(8).reshape(2, 4)), leaf(torch.tensor([[1, 1, 1, 0]] * 2), "attention_mask")
    labels = leaf(torch.tensor([[-100, -100, 3, -100], [-100, -100, -100, -100]]))
    assert signal(Pull(leaves=[ids, mask, labels])).padding == 0.875
    assert signal(Pull(leaves=[ids, mask])).padding == 0.25
