"""The guard's rounds on a fleet of threads: all workers do the same or nobody does anything."""

import json
import math
import random

import pytest
import torch

from fleet import Fleet, InjectedError
from fleet.guarded import FIRST_RANK, GuardedWorker, HaltedError
from unisono.act.guard.decider import Decider
from unisono.act.guard.decision_log import DecisionLog
from unisono.act.guard.options import Checkpoints, guard
from unisono.act.guard.policy import Decision, Reason
from unisono.exchange.collectives import GuardCollectives
from unisono.exchange.guard_messages import ENDINGS, RankReport
from unisono.policy import Row
from unisono.records.finding import Finding

CPU = torch.device("cpu")
USUAL = 24
"""Steps after which the workers know what is usual."""


class Voice:
    """A worker that says what the test wants it to say."""

    def __init__(self, fleet, options):
        self.collectives = GuardCollectives(fleet.group, CPU)
        self.decider = Decider(range(fleet.world), options, options.policy(), lambda: ())
        self.log, self.done, self.results = DecisionLog(1), [], []

    def hold(self, step, loss=1.0, square=1.0, nth=0, **said):
        report = {"finite": True, "scaled": False, "leaving": False, "may_be_late": False, "held": ()} | said
        report = RankReport(step=step, loss=loss, share_square=square, **{"chain": self.log.chain} | report)
        result = self.collectives.hold(report, lambda reports: self.decider.consider(reports, nth))
        if result.decision:
            decision = Decision.from_json(result.decision.decode())
            self.log.enter(decision, result.decision)
            self.done.append([decision.step, *decision.actions])
        self.results.append(result)
        return result

    def told(self):
        return json.dumps([self.log.chain, self.done, [str(result) for result in self.results]])


def all_said(fleet, work):
    """What all ranks of the fleet say alike."""
    (said,) = {json.dumps(each) for each in fleet.run(work)}
    return json.loads(said)


def finding(code, **changes):
    facts = {"severity": "critical", "state": "open", "first": 1, "last": 30, "ranks": (5,)} | changes
    return Finding(code, "slug", "title", *facts.values(), (), "why", {}, (), (), None)


def test_thousands_of_rounds_of_late_and_contradicting_workers_are_never_partial():
    rounds = 1_500

    def work(rank):
        voice, chance = Voice(fleet, guard(budget=False, reset_momentum=True, clip=2.0)), random.Random(rank)
        for step in range(rounds):
            fleet.begins(step)
            bad = chance.random() < 0.2
            loss = chance.choice([math.nan, math.inf, 1e9, 1.0]) if bad else 1.0 + 0.1 * chance.random()
            voice.hold(step, loss, chance.choice([1.0, 1e8, math.nan]) if bad else 1.0, finite=not bad)
        return voice.told()

    fleet, chance = Fleet(3), random.Random(0)
    for step in chance.sample(range(rounds), 30):
        fleet.late(chance.randrange(3), step, seconds=0.005)
    _, done, results = json.loads(all_said(fleet, work))
    assert len(results) == rounds
    assert len(done) > 300


def test_decisions_at_the_limit_never_differ():
    rounds = 1_500

    def work(rank):
        voice = Voice(fleet, guard(budget=False, norm_spike=10.0))
        for step in range(USUAL):
            voice.hold(step, square=0.5)
        limit = voice.collectives.tell({"limit": limit_of(voice)} if rank == 0 else None)["limit"]
        for watch in voice.decider._watches.values():
            # The limit stays where it is.
            watch.learn = lambda situation, spike: None
        chance = random.Random(100 + rank)
        for step in range(USUAL, USUAL + rounds):
            voice.hold(step, square=math.nextafter(limit, math.inf if chance.random() < 0.5 else 0.0))
        return voice.told()

    fleet = Fleet(2)
    _, done, _ = json.loads(all_said(fleet, work))
    assert rounds / 10 < len(done) < rounds * 9 / 10, "the numbers were not at the limit"


def limit_of(voice):
    """The share of each of two workers at which the whole norm is extreme."""
    low, high = 0.5, 1e6
    while math.nextafter(low, high) < high:
        middle = (low + high) / 2
        now = voice.decider._watches[0].situation(0, [1.0] * 2, [True] * 2, math.sqrt(middle * 2))
        low, high = (low, middle) if voice.decider._options.spike(now) else (middle, high)
    return low


def test_a_norm_counts_as_extreme_beyond_the_limit_and_not_at_it():
    """The usual ends at 1; ten times that is the limit."""

    def work(rank):
        voice = Voice(fleet, guard(budget=False, norm_spike=10.0))
        for step in range(USUAL):
            voice.hold(step, square=0.5)
        for watch in voice.decider._watches.values():
            watch.learn = lambda situation, spike: None
        squares = (50.0, math.nextafter(50.0, 100.0), 50.1)
        return [bool(voice.hold(USUAL + n, square=square).decision) for n, square in enumerate(squares)]

    fleet = Fleet(2)
    # The unit in the last place of a square is lost in its root.
    assert all_said(fleet, work) == [False, False, True]


def test_a_skipped_step_leaves_no_trace_on_any_worker_and_names_the_culprit():
    def work(rank):
        worker = GuardedWorker(fleet, rank, guard())
        for step in range(3):
            worker.train(step)
        before = worker.bits()
        skipped = worker.train(3, factor=math.nan if rank == 2 else 1.0)
        kept = worker.bits() == before
        moved = not worker.train(4) and worker.bits() != before
        (record,) = worker.log.decisions
        written = [(one.step, one.action) for one in worker.written]
        return worker.told(), (skipped, kept, moved, worker.actions, record.ranks), written, worker.lines

    fleet = Fleet(3)
    results = fleet.run(work)
    assert len({told for told, *_ in results}) == 1
    assert {str(facts) for _, facts, *_ in results} == {str((True, True, True, [(3, "skip")], (FIRST_RANK + 2,)))}
    assert [written for *_, written, _ in results] == [[(3, "skip")], [], []]
    assert [len(lines) for *_, lines in results] == [1, 0, 0]
    assert "rank 6's loss is not finite" in results[0][-1][0]


def test_bad_batches_are_skipped_for_as_long_as_they_come_and_nobody_stops():
    bad = (3, 5, 8, 9, 10, 14, 17)

    def work(rank):
        worker = GuardedWorker(fleet, rank, guard(budget=2))
        moved = []
        for step in range(20):
            before = worker.bits()
            worker.train(step, factor=math.inf if rank == 1 and step in bad else 1.0)
            moved += [step] * (worker.bits() != before)
        weights = b"".join(one.detach().numpy().tobytes() for one in worker.parameters)
        return worker.told(), worker.actions, moved, weights

    fleet = Fleet(3)
    results = fleet.run(work)
    assert len({told for told, *_ in results}) == 1
    assert len({weights for *_, weights in results}) == 1
    for _, actions, moved, _ in results:
        assert actions == [(step, "skip") for step in bad]
        assert moved == [step for step in range(20) if step not in bad]


def test_where_it_is_asked_for_a_persistent_fault_stops_all_workers_after_exactly_the_budget():
    actions = {}

    def work(rank):
        worker = GuardedWorker(fleet, rank, guard(budget=2, halt=["UN602"]))
        try:
            for step in range(10):
                worker.train(step, factor=math.inf if rank == 1 and step >= 3 else 1.0)
        finally:
            actions[rank] = worker.actions

    fleet = Fleet(3)
    assert [type(outcome) for outcome in fleet.outcomes(work)] == [HaltedError] * 3
    assert actions == {rank: [(3, "skip"), (4, "skip"), (5, "halt")] for rank in range(3)}


def test_roll_backs_end_with_their_budget_and_that_is_said_once():
    options = guard(rollback=True, checkpoints=Checkpoints(every=2, keep=2, quiet=2))

    def work(rank):
        worker = GuardedWorker(fleet, rank, options)
        for step in range(40):
            worker.train(step, factor=1e4 if step >= 30 else 1.0)
        return worker.told(), [action for _, action in worker.actions], worker.lines, worker.written

    fleet = Fleet(2)
    (told, actions, lines, written), (other, _, quiet, _) = fleet.run(work)
    assert told == other
    assert actions == ["roll-back, skip"] * 3 + ["skip"] * 7
    (said,) = [line for line in lines if line.startswith("not rolled back: 3 roll-backs in the last 1,000 steps")]
    assert said.endswith("there are no more of them before step 1,030 (guard)")
    assert quiet == []
    (note,) = [record for record in written if record.kind == "note"]
    assert (note.about, note.step) == ("roll-backs-used-up", 33)


def going_back(lacking):
    """Checkpoints every two steps; at step 30 the norm explodes. What each worker did, and whether it went back."""
    options = guard(rollback=True, checkpoints=Checkpoints(every=2, keep=2, quiet=2))

    def work(rank):
        worker = GuardedWorker(fleet, rank, options)
        bits = {}
        for step in range(30):
            if rank == 1 and step == 29:
                lacking(worker)
            worker.train(step)
            bits[worker.bits()] = step
        worker.train(30, factor=1e4)
        (record,) = worker.log.decisions
        went_back_to = bits.get(worker.bits())
        return record.action, record.to_step, went_back_to, worker.store.held(), record.outcome, worker.lines

    fleet = Fleet(3)
    return fleet.run(work)


def test_all_go_back_to_the_newest_healthy_checkpoint():
    for action, to_step, now, held, *_ in going_back(lambda worker: None):
        assert (action, to_step, now) == ("roll-back, skip", 26, 26)
        assert 26 in held


def test_they_go_back_only_to_a_checkpoint_that_everybody_holds():
    def lacking(worker):
        worker.store._drop(26)

    for action, to_step, now, *_ in going_back(lacking):
        assert (action, to_step, now) == ("roll-back, skip", 24, 24)


def test_without_a_checkpoint_that_everybody_holds_the_step_is_skipped_by_all():
    def lacking(worker):
        worker.store.close()
        worker.store.has_room = lambda: False

    for action, to_step, now, *_ in going_back(lacking):
        assert (action, to_step, now) == ("skip", None, 29)


def test_nobody_goes_back_to_a_checkpoint_that_does_not_fit_on_one_worker():
    def lacking(worker):
        snapshot = worker.store._snapshots[26]
        object.__setattr__(snapshot, "replica", snapshot.replica | {"optimizers": []})

    found = going_back(lacking)
    for action, to_step, now, _, outcome, _ in found:
        assert (action, to_step, now) == ("roll-back, skip", 26, 29)
        assert outcome == "not rolled back: the checkpoint of step 26 does not fit on rank 5"
    why = [any("does not fit here (" in line for line in lines) for *_, lines in found]
    assert why == [False, True, False]


def test_a_checkpoint_is_not_taken_of_a_skipped_step_and_trouble_takes_those_that_wait():
    def work(rank):
        worker = GuardedWorker(fleet, rank, guard(rollback=True, checkpoints=Checkpoints(every=1, keep=3, quiet=2)))
        held = []
        for step in range(7):
            worker.train(step, factor=math.nan if step == 4 else 1.0)
            held.append((worker.store.held(), list(worker.store._ledger._waiting), list(worker.store._ledger._agreed)))
        return held

    fleet = Fleet(2)
    held = all_said(fleet, work)
    assert held[3] == [[0, 1], [2, 3], [0]]
    # Of the second and third nobody knew whether they were healthy, and the fourth was never taken.
    assert held[4] == [[0, 1], [], [0, 1]]
    assert held[6] == [[0, 1], [5, 6], [0, 1]]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_worker_that_dies_before_a_round_makes_all_others_fail_and_nobody_acts(victim):
    assert_nobody_acts(Fleet(3).fail_at(victim, step=3), victim)


@pytest.mark.parametrize("call", ["_gather", "_broadcast", "_broadcast_bytes"])
def test_a_first_worker_that_dies_in_a_round_makes_all_others_fail_and_nobody_acts(call):
    def dying(worker, step):
        def dies(*_):
            raise InjectedError(call)

        if step == 3 and worker.rank == 0:
            setattr(worker.collectives, call, dies)

    assert_nobody_acts(Fleet(3), 0, dying)


def assert_nobody_acts(fleet, victim, dying=lambda worker, step: None):
    """A step that all would have skipped."""
    seen = {}

    def work(rank):
        worker = GuardedWorker(fleet, rank, guard())
        for step in range(5):
            fleet.begins(step)
            dying(worker, step)
            before = [one.detach().clone() for one in worker.parameters]
            try:
                worker.train(step, factor=math.nan if step == 3 and rank == 1 else 1.0)
            finally:
                same = all(map(torch.equal, before, worker.parameters))
                seen[rank] = step, worker.actions, worker.executor.skipped, same

    outcomes = fleet.outcomes(work)
    assert isinstance(outcomes[victim], InjectedError)
    assert all(type(outcome) is RuntimeError for rank, outcome in enumerate(outcomes) if rank != victim), outcomes
    for rank in set(range(3)) - {victim}:
        assert seen[rank] == (3, [], False, True)


def test_a_first_worker_that_cannot_decide_says_why_and_all_fail():
    def broken():
        raise ZeroDivisionError("findings")

    def work(rank):
        worker = GuardedWorker(fleet, rank, guard(), findings=broken)
        worker.train(0, factor=math.nan)

    fleet = Fleet(3)
    first, *others = fleet.outcomes(work)
    assert isinstance(first, ZeroDivisionError)
    assert all("failed on the first worker" in str(other) for other in others)


def test_a_worker_that_leaves_ends_the_guard_for_all_in_the_same_round():
    def work(rank):
        worker = GuardedWorker(fleet, rank, guard())
        over = []
        for step in range(3):
            worker.round.leaving = rank == 2 and step == 1
            worker.train(step, factor=math.nan if step == 1 else 1.0)
            over.append(worker.round.over)
            if worker.round.over:
                break
        return over, worker.actions, worker.lines

    fleet = Fleet(3)
    results = fleet.run(work)
    assert [(over, actions) for over, actions, _ in results] == [([False, True], [])] * 3
    assert [lines for *_, lines in results] == [["the guard has ended: a worker has stopped listening"], [], []]


def test_workers_whose_decisions_differ_are_named_and_the_guard_ends():
    def work(rank):
        worker = GuardedWorker(fleet, rank, guard())
        worker.log.chain += rank == 1
        worker.train(0, factor=math.nan)
        return worker.round.over, worker.actions, [(note.about, note.ranks) for note in worker.written]

    fleet = Fleet(3)
    first, *others = fleet.run(work)
    assert first == (True, [], [("decisions-differ", (FIRST_RANK + 1,))])
    assert others == [(True, [], [])] * 2


def test_replicas_that_drifted_are_made_equal_by_all_together_and_only_that_is_written_down():
    def work(rank):
        worker = GuardedWorker(fleet, rank, guard(resync=3, budget=2, halt=["UN602"]))
        # Before it is compared, each worker's own statistics differ, and that is no fault.
        for step in range(7):
            if rank == 1 and step == 4:
                worker.parameters[0].data[0, 0] += 0.5
            worker.train(step)
        (record,) = worker.log.decisions
        weights = b"".join(one.detach().numpy().tobytes() for one in worker.parameters)
        return (
            (record.step, record.action, record.ranks, record.outcome),
            weights,
            list(worker.decider._policy._spent),
        )

    fleet = Fleet(3)
    results = fleet.run(work)
    assert len({weights for _, weights, _ in results}) == 1
    assert len({str(record) for record, *_ in results}) == 1
    step, action, ranks, outcome = results[0][0]
    assert (step, action, ranks) == (6, "resync", (FIRST_RANK + 1,))
    assert outcome == "rank 5 was overwritten by rank 4: 1 of 6 parameters, largest difference 5.0e-01"
    # Equal replicas at step 3 cost nothing; what was needed at step 6 does.
    assert results[0][-1] == [6]


def test_lasting_drift_is_made_equal_at_every_periodic_comparison():
    def work(rank):
        worker = GuardedWorker(fleet, rank, guard(resync=3))
        for step in range(30):
            if rank == 1:
                worker.parameters[0].data[0, 0] += 0.5
            worker.train(step)
        return worker.told(), worker.actions

    fleet = Fleet(3)
    results = fleet.run(work)
    assert len({told for told, _ in results}) == 1
    assert results[0][1] == [(step, "resync") for step in range(3, 30, 3)]


@pytest.mark.parametrize(("source", "kept"), [("majority", 1), ("first", 0)])
def test_replicas_are_taken_from_the_majority_or_where_asked_from_the_first_worker(source, kept):
    def work(rank):
        worker = GuardedWorker(fleet, rank, guard(resync=3, resync_from=source))
        with torch.no_grad():
            worker.parameters[0].fill_(float(rank > 0))
            worker.optimizer.param_groups[0]["lr"] = 0.0
        for step in range(4):
            worker.train(step)
        (record,) = worker.log.decisions
        return worker.parameters[0].detach().unique().tolist(), record.outcome

    fleet = Fleet(3)
    weights, outcome = all_said(fleet, work)
    assert weights == [kept]
    assert ("rank 4 was overwritten by rank 5" in outcome) == (source == "majority")
    assert ("rank 5 was overwritten by rank 4" in outcome) == (source == "first")


def test_a_resync_that_a_finding_asked_for_compares_buffers_and_is_written_down_in_any_case():
    def work(rank):
        worker = GuardedWorker(fleet, rank, guard(resync=True), findings=lambda: [finding("UN301")])
        worker.train(0)
        (record,) = worker.log.decisions
        return record.outcome, worker.model[1].running_mean.tolist()

    fleet = Fleet(2)
    outcome, _ = all_said(fleet, work)
    assert "3 of 3 buffers" in outcome or "2 of 3 buffers" in outcome


def test_other_actions_reach_every_worker():
    called = []
    rows = [
        Row("call", lambda now: "now" if now.step == 2 else None, lambda decision: called.append(decision.step)),
        Row("empty", lambda now: "now" if now.step == 3 else None, ("reset-momentum", "skip")),
        Row("clip", lambda now: Reason("now", argument=0.5) if now.step == 4 else None, "clip"),
        Row("seed", lambda now: "now" if now.step == 5 else None, "reseed"),
    ]

    def work(rank):
        worker = GuardedWorker(fleet, rank, guard(rows=rows, budget=False))
        for step in range(4):
            worker.train(step)
        emptied = not any(one.any() for one in worker.momentum())
        worker.backward()
        before, worker.step = worker.norm(), 4
        worker.round.hold(0)
        after = worker.norm()
        worker.train(5)
        return worker.actions, emptied, math.isclose(after, before / 2, rel_tol=1e-5)

    fleet = Fleet(3)
    actions, emptied, clipped = all_said(fleet, work)
    assert actions == [[2, "callback"], [3, "reset-momentum, skip"], [4, "clip"], [5, "reseed"]]
    assert emptied
    assert clipped
    assert called == [2] * 3


def test_functions_of_the_users_are_called_also_where_rows_act_side_by_side():
    called = []
    rows = [
        Row("first, of two", lambda now: "now", lambda decision: called.append("first")),
        Row("second", lambda now: "now", lambda decision: called.append("second"), alongside=True),
        Row("never", lambda now: None, lambda decision: called.append("never")),
    ]

    def work(rank):
        worker = GuardedWorker(fleet, rank, guard(rows=rows, clip=1e-6, budget=False))
        worker.train(0)
        return worker.actions, worker.norm() < 1.001e-6

    fleet = Fleet(2)
    assert all_said(fleet, work) == [[[0, "callback, clip"]], True]
    assert sorted(called) == ["first"] * 2 + ["second"] * 2


def test_a_dry_run_only_says_what_it_would_have_done():
    def work(rank):
        worker = GuardedWorker(fleet, rank, guard(dry_run=True))
        skipped = worker.train(0, factor=math.nan if rank == 1 else 1.0)
        (record,) = worker.log.decisions
        return skipped, record.dry, record.action

    fleet = Fleet(2)
    assert all_said(fleet, work) == [False, True, "skip"]


def test_what_is_added_to_a_skipped_step_is_skipped_with_it_and_the_next_step_is_judged_anew():
    def work(rank):
        voice = Voice(fleet, guard(budget=False))
        results = [
            voice.hold(0, loss=math.nan),
            voice.hold(0, nth=1),
            voice.hold(1),
            voice.hold(1, nth=1),
        ]
        return [(bool(result.decision), result.quiet) for result in results]

    fleet = Fleet(2)
    assert all_said(fleet, work) == [[True, False], [False, False], [False, True], [False, True]]


def test_only_what_all_hold_is_agreed_on_and_each_once():
    def work(rank):
        voice = Voice(fleet, guard())
        held = [(2, 4), (2, 4, 6), (2, 4, 6), (6, 8)], [(4, 6), (4, 6), (4, 6), (8,)]
        return [voice.hold(step, held=mine).agreed for step, mine in enumerate(held[rank % 2])]

    fleet = Fleet(3)
    assert all_said(fleet, work) == [4, 6, None, 8]


def test_nobody_waits_any_longer_only_where_all_can_do_without():
    def work(rank):
        voice = Voice(fleet, guard())
        return [voice.hold(step, may_be_late=rank != 1 or step > 0).late for step in range(2)]

    fleet = Fleet(3)
    assert all_said(fleet, work) == [False, True]


def test_what_one_worker_does_not_know_does_not_hide_what_another_does():
    def work(rank):
        voice = Voice(fleet, guard())
        unknown = voice.hold(0, loss=None, finite=None, square=None)
        told = voice.hold(1, loss=None, finite=False if rank == 1 else None, square=None)
        scaled = voice.hold(2, loss=math.nan, scaled=rank == 0)
        ended = voice.hold(3, chain=rank)
        return bool(unknown.decision), json.loads(told.decision)["ranks"], bool(scaled.decision), ended.ends

    fleet = Fleet(2)
    assert all_said(fleet, work) == [False, [1], False, ENDINGS[2]]


def test_a_norm_of_which_one_worker_does_not_know_its_share_is_not_judged():
    def work(rank):
        voice = Voice(fleet, guard())
        for step in range(USUAL):
            voice.hold(step, square=0.5)
        unknown = voice.hold(USUAL, square=1e9 if rank == 0 else None)
        known = voice.hold(USUAL + 1, square=1e9)
        return bool(unknown.decision), bool(known.decision)

    fleet = Fleet(2)
    assert all_said(fleet, work) == [False, True]


def test_the_collectives_answer_for_all():
    def work(rank):
        collectives = GuardCollectives(fleet.group, CPU)
        own = [[1, 5, 9], [5, 9, 12], [3, 5, 9]][rank]
        return (
            collectives.choose(own),
            collectives.choose([rank]),
            collectives.choose([]),
            collectives.those_who(rank != 1),
            collectives.first_with(7 if rank else 3),
            collectives.tell({"step": 3} if rank == 0 else None),
        )

    fleet = Fleet(3)
    results = fleet.run(work)
    assert [result[:4] + result[5:] for result in results] == [(9, None, None, [0, 2], {"step": 3})] * 3
    assert [result[4] for result in results] == [0, 1, 1]
