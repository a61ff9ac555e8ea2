"""The guard with real processes: all ranks act or none does, and what is skipped leaves no trace."""

import json
import re
from pathlib import Path

import pytest

from launch import SCRIPTS, forked, launch, torchrun, under_unisono
from unisono.act.actions.halt import EXIT_CODE
from unisono.records import DecisionRecord
from unisono.records.runfile import read_run, scan
from unisono.show.analysis.checkup import examine

JOBS = Path(__file__).parent.parent / "jobs"
BAD = 24
APART = (4, 9, 14, 19, BAD)
OPTIMIZERS = (
    *("sgd", "momentum", "momentum-foreach", "momentum-fused"),
    *("adam", "adam-foreach", "adam-fused", "adamw", "adamw-amsgrad"),
)
LOOPS = (
    *("compiled", "unwrapped", "through", "more", "late", "wrapped-again", "attached-again", "forwards"),
    *("afterwards", "healed", "later", "fits"),
)
LOOP_REFUSALS = {
    "refuse-twice": "Found a second synchronised backward pass",
    "refuse-without": "Found a step without one",
    "refuse-inside": "Found an optimizer that steps before",
}
REFUSALS = {
    "refuse-lbfgs": "Found LBFGS",
    "refuse-join": "Found `join`",
    "refuse-different": "Found other settings or parameters on rank",
    "refuse-twice": "Found one that is guarded already",
}
PHASES = (
    *("half-way", "while-sending"),
    *(
        pytest.param(phase, marks=pytest.mark.soak("deaths"))
        for phase in ("decided", "fetching", "gone-back", "before-resync", "after-resync")
    ),
)


def guarded(tmp_path, workers, *names, job="guarded.py", restarts=0):
    line = forked(workers, JOBS / job, *names)
    if restarts:
        line = torchrun(workers, f"--max-restarts={restarts}", JOBS / job, *names)
    outcome = launch(line, env={"RESULTS": tmp_path}, timeout=900)
    assert outcome.returncode == 0, outcome
    return {
        name.partition(":")[0]: [
            json.loads((tmp_path / f"{name.partition(':')[0]}.{rank}.json").read_text()) for rank in range(workers)
        ]
        for name in names
    }


def decisions_in(folder):
    return [record for _, record in scan(folder) if isinstance(record, DecisionRecord)]


def assert_same_decisions(ranks):
    assert len({json.dumps(rank["decisions"]) for rank in ranks}) == 1


@pytest.fixture(scope="module")
def skipped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("skipped")
    names = [f"skip-{name}" for name in OPTIMIZERS]
    return guarded(folder, 4, *names, "skip-extreme", "skip-scaled", "scaler-skips", "saved", "poisoned"), folder


@pytest.mark.parametrize("name", [*OPTIMIZERS, "extreme", "scaled"])
def test_a_skipped_step_leaves_no_trace_in_weights_and_optimizer(skipped, name):
    ranks = skipped[0][f"skip-{name}"]
    assert_same_decisions(ranks)
    for rank in ranks:
        assert [(step, action) for step, action, *_ in rank["decisions"]] == [(BAD, "skip")]
        assert rank["weights_kept"]
        assert rank["state_kept"]
        assert rank["weights_moved"]


def test_what_the_loss_scaler_skips_is_left_to_it(skipped):
    for rank in skipped[0]["scaler-skips"]:
        assert rank["decisions"] == []
        assert rank["weights_kept"]


def test_every_nan_on_one_rank_is_named_and_skipped_in_its_step_and_without_a_guard_the_run_is_lost(skipped):
    found, folder = skipped
    assert not any(rank["finite"] for rank in found["poisoned"])
    assert_same_decisions(found["saved"])
    for rank in found["saved"]:
        assert rank["finite"]
        words = "rank 2's gradients are not finite"
        assert [one[:4] for one in rank["decisions"]] == [[step, "skip", [2], words] for step in APART]
        kept = [step for step in range(1, 30) if rank["prints"][step] == rank["prints"][step - 1]]
        assert kept == list(APART)
    assert len({tuple(rank["prints"]) for rank in found["saved"]}) == 1
    *_, record = decisions_in(folder / "poisoned-True")
    assert (record.id, record.ranks, record.dry) == (f"1-{BAD}-5", (2,), False)
    assert record.digest == found["saved"][3]["decisions"][-1][-1]
    (told,) = [one for one in examine(folder / "poisoned-True").findings if one.code == "UN602"]
    assert "5 steps skipped" in told.why
    assert [cause.slug for cause in told.causes] == ["fault-lasts"]


@pytest.mark.slow
def test_unusual_loops_and_actions(tmp_path):
    found = guarded(
        tmp_path, 4, "dry", "clip", "own-rows", "reseed", "closed-by-one", "accumulated", "given-up", "closure",
        "statistics", *REFUSALS,
    )  # fmt: skip
    for ranks in found.values():
        if "decisions" in ranks[0]:
            assert_same_decisions(ranks)
    assert_dry(found["dry"], decisions_in(tmp_path / "dry"))
    for rank in found["clip"]:
        assert len(rank["decisions"]) > 20
        assert rank["apart"] < 1e-5
    for rank in found["own-rows"]:
        assert [one[:2] for one in rank["decisions"]] == [[5, "reset-momentum, skip"], [8, "callback"]]
        assert rank["calls"] == [8]
        assert rank["emptied"]
        assert rank["kept"]
    assert len({rank["before"] for rank in found["reseed"]}) == 1
    assert len({rank["after"] for rank in found["reseed"]}) == 4
    for name in ("accumulated", "closure"):
        assert all(rank["kept"] and rank["finite"] for rank in found[name]), name
        assert [one[:2] for one in found[name][0]["decisions"]] == [[BAD, "skip"]], name
    assert all(rank["moved"] for rank in found["closure"])
    assert all(rank["moved_on"] and rank["finite"] for rank in found["given-up"])
    assert all(rank["finite"] and rank["finite_buffers"] for rank in found["statistics"])
    assert found["statistics"][0]["decisions"][0][2] == [0]
    # Who guards no longer does not save the run either: that is plain training.
    assert not any(rank["finite"] or rank["decisions"] for rank in found["closed-by-one"])
    for name, words in REFUSALS.items():
        assert all(words in rank["error"] for rank in found[name]), name


@pytest.mark.slow
def test_loops_of_unusual_shapes(tmp_path):
    found = guarded(tmp_path, 3, *LOOPS, *LOOP_REFUSALS, job="guarded_loops.py")
    for name in LOOPS:
        assert_same_decisions(found[name])
        assert all(rank["finite"] for rank in found[name]), name
    for name in set(LOOPS) - {"healed", "later", "fits"}:
        assert [one[1:3] for one in found[name][0]["decisions"]] == [["skip", [1]]], name
    assert found["healed"][0]["decisions"] == []
    assert all(rank["others_finite"] for rank in found["more"])
    assert all(rank["kept"] for rank in found["forwards"])
    # A second optimizer comes at the step before the bad one: all wait again from then on.
    assert found["late"][0]["begun"][10:24] == [True] * 14
    assert not any(rank["begun"][-1] for rank in found["late"])
    assert "no healthy checkpoint" in found["later"][0]["decisions"][0][3]
    for rank in found["fits"]:
        assert rank["outcomes"][0].startswith("not rolled back: the checkpoint of step 20 does not fit on rank 1")
        assert rank["prints"] == found["fits"][0]["prints"]
    for name, words in LOOP_REFUSALS.items():
        assert all(words in rank["error"] for rank in found[name]), name


@pytest.mark.slow
def test_on_the_device_nobody_waits_and_the_step_is_left_out_all_the_same(tmp_path):
    """The same code as on a GPU with NCCL, on the CPU."""
    found = guarded(tmp_path, 4, "late-nan", "late-extreme", "late-not-possible", "late-back")
    for name, ranks in found.items():
        assert_same_decisions(ranks)
        action = "roll-back, skip" if name == "late-back" else "skip"
        assert [one[:2] for one in ranks[0]["decisions"]] == [[BAD, action]], name
        assert all(rank["finite"] for rank in ranks), name
        if name != "late-back":
            assert all(rank["weights_kept"] and rank["state_kept"] and rank["weights_moved"] for rank in ranks), name


def assert_dry(ranks, written):
    for rank in ranks:
        assert rank["as_without"]
        assert [one[:2] for one in rank["decisions"]] == [[BAD, "roll-back, skip"]]
    (record,) = written
    assert record.dry
    assert record.to_step is not None


@pytest.mark.slow
def test_replicas_are_found_voted_and_repaired_within_two_checks(tmp_path):
    found = guarded(tmp_path, 4, "resync-drift", "resync-lasting", "resync-stale", "resync-state")
    lasting = found.pop("resync-lasting")
    assert_same_decisions(lasting)
    # Every five steps, and when a finding tells of it: as often as is needed.
    assert {(action, *ranks) for _, action, ranks, *_ in lasting[0]["decisions"]} == {("resync", 1)}
    assert len(lasting[0]["decisions"]) > 3
    assert not lasting[0]["equal"][-1], "the fault did not fire"
    assert_repaired(found)


@pytest.mark.slow
def test_replicas_that_a_finding_tells_of_are_repaired(tmp_path):
    assert_repaired(guarded(tmp_path, 4, "resync-on-finding"))


def assert_repaired(found):
    for name, ranks in found.items():
        assert_same_decisions(ranks)
        equal, decisions, outcomes = (ranks[0][key] for key in ("equal", "decisions", "outcomes"))
        assert not equal[13], f"{name}: the fault did not fire"
        if name != "resync-on-finding":
            # Compared every five steps, first at step 15: two checks have passed by step 20.
            assert all(equal[20:]), name
        assert all(equal[-10:]), name
        assert decisions[0][1:3] == ["resync", [1]], name
        assert "rank 1 was overwritten by rank 0" in outcomes[0], name
        assert ("optimizer state" in outcomes[0]) == (name == "resync-state"), name


def test_where_it_is_asked_for_a_persistent_fault_stops_after_exactly_the_budget_with_its_own_exit_code(tmp_path):
    outcome = launch(torchrun(4, JOBS / "guarded.py", "persistent"), env={"RESULTS": tmp_path})
    assert outcome.returncode == 1, outcome
    codes = re.findall(rb"exitcode  : (-?[0-9]+)", outcome.stderr)
    # The launcher stops those that are still on their way out when the first has ended.
    assert len(codes) == 4, outcome
    assert set(codes) <= {b"%d" % EXIT_CODE, b"-15"}, outcome
    assert b"exitcode  : %d" % EXIT_CODE in outcome.stderr.partition(b"Root Cause")[2], outcome
    actions = [(record.step, record.action) for record in decisions_in(tmp_path / "persistent")]
    assert actions == [(BAD, "skip"), (BAD + 1, "skip"), (BAD + 2, "skip"), (BAD + 3, "halt")]
    assert b"3 actions in the last 1,000 steps did not help" in outcome.stderr
    assert [end.ended for end in read_run(tmp_path / "persistent").ends] == ["finished"]


def test_a_run_that_rolled_back_ends_like_one_that_never_had_the_fault(tmp_path):
    assert_replayed(guarded(tmp_path, 2, "replay", job="guarded_back.py")["replay"])


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.soak("guard"))])
def test_runs_that_rolled_back_end_like_those_that_never_had_the_fault(tmp_path, count):
    found = guarded(tmp_path, 2, f"replays:{count}", job="guarded_back.py")["replays"]
    assert len(found[0]) == count
    assert_replayed(found)


def assert_replayed(ranks):
    """Weights, optimizer, learning rate and the next random numbers of each rank, bit for bit."""
    for runs in ranks:
        for run in runs:
            never, once = run["never"], run["once"]
            assert once["taken"] > never["taken"], "no step was taken twice"
            assert [one[1] for one in once["decisions"]] == ["roll-back, skip"]
            for part in ("print", "state", "rate", "random"):
                assert once[part] == never[part], part


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["dying-before", "dying-between"])
def test_a_rank_that_dies_in_a_round_ends_the_job_as_with_ddp_alone(tmp_path, moment):
    outcome = launch(forked(4, JOBS / "guarded.py", moment), env={"RESULTS": tmp_path}, timeout=60)
    assert outcome.returncode == 1, outcome
    assert b"ended first, with -9" in outcome.stderr, outcome
    assert not list(tmp_path.glob(f"{moment}.*.json")), "somebody trained on"


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    return guarded(tmp_path_factory.mktemp("never"), 2, "never", job="guarded_back.py")["never"]


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_killed_in_a_phase_of_an_action_leads_to_one_consistent_state(tmp_path, never_killed, phase):
    found = guarded(tmp_path, 2, phase, job="guarded_back.py", restarts=1)[phase]
    for rank, other in zip(found, never_killed, strict=True):
        assert rank["attempt"] == "1", "nobody was killed"
        assert rank["begun"] is not None
        for part in ("weights", "state", "rate", "random"):
            assert rank[part] == other[part], part


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [300, pytest.param(10_000, marks=pytest.mark.soak("guard"))])
def test_rounds_of_late_and_contradicting_ranks_are_never_partial(tmp_path, rounds):
    ranks = guarded(tmp_path, 4, f"late:{rounds}", job="rounds.py")["late"]
    assert len({json.dumps(rank) for rank in ranks}) == 1
    assert len(ranks[0]["done"]) > rounds / 10


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1_500, pytest.param(100_000, marks=pytest.mark.soak("guard"))])
def test_decisions_at_the_limit_never_differ(tmp_path, rounds):
    ranks = guarded(tmp_path, 2, f"limit:{rounds}", job="rounds.py")["limit"]
    assert len({json.dumps(rank) for rank in ranks}) == 1
    assert 0.1 < len(ranks[0]["done"]) / rounds < 0.9, "the numbers were not at the limit"


def test_a_script_is_guarded_without_a_line_of_it_changed(tmp_path):
    line = torchrun(2, SCRIPTS / "poisoned.py")
    alone = launch(under_unisono(line, "--out", tmp_path / "alone"), cwd=tmp_path)
    # The two may write into one line.
    assert (alone.stdout.count(b"lost"), alone.stdout.count(b"finite")) == (2, 0), alone
    guarded = launch(under_unisono(line, "--out", tmp_path / "run", "--guard"), cwd=tmp_path)
    assert guarded.returncode == 0, guarded
    assert (guarded.stdout.count(b"lost"), guarded.stdout.count(b"finite")) == (0, 2), guarded
    assert [record.action for record in decisions_in(tmp_path / "run")] == ["skip"] * 5
