"""Steering with real processes: all ranks take the same step, or none does, and what is rejected leaves no trace."""

import json
import signal
from pathlib import Path

import pytest

from launch import SCRIPTS, forked, launch, torchrun, under_unisono
from unisono.records.runfile import read_run

JOBS = Path(__file__).parent.parent / "jobs"
FROM = 4
ROUTES = [f"{gram}-{scope}" for gram in ("sketch", "exact") for scope in ("model", "bucket")]
VARIANTS = ["perceptron", "bucket-view", "channels-last", "accumulated-scaled", "find-unused", "static-graph", "odd"]
PAIRS = [f"{ROUTES[number % 4]}-{VARIANTS[number % 7]}" for number in range(11)]
"""Every variant, and every route with several."""

ALL_PAIRS = [
    pytest.param(
        workers,
        [f"{route}-{variant}" for route in routes for variant in variants],
        marks=pytest.mark.soak("steering"),
    )
    for workers, routes, variants in (
        (2, ROUTES, VARIANTS),
        (3, ("sketch-model", "exact-bucket"), VARIANTS[:4]),
        (4, ("sketch-model", "exact-bucket"), VARIANTS[:4]),
    )
]
WEIGHTINGS = ["adaptive", "norm-aware", "windowed", "preconditioned", "own-function"]
REFUSALS = {
    "refuse-compression": "Found `fp16_compress_hook`",
    "refuse-compression-later": "Found another one being registered",
    "refuse-different": "Found other settings or parameters on rank",
    "refuse-join": "Found `join`",
    "refuse-sparse": "Found a sparse one",
}


def trained(tmp_path, workers, names, job="steered.py"):
    outcome = launch(forked(workers, JOBS / job, *names), env={"RESULTS": tmp_path}, timeout=900)
    assert outcome.returncode == 0, outcome
    return {
        name: [json.loads((tmp_path / f"{name}.{rank}.json").read_text()) for rank in range(workers)] for name in names
    }


def assert_equal_everywhere(name, ranks):
    assert len({tuple(rank["prints"]) for rank in ranks}) == 1, name


def assert_like_plain(name, ranks):
    assert_equal_everywhere(name, ranks)
    for rank in ranks:
        # Exact inner products come with a sum that is rounded once: with two workers no other is possible.
        assert rank["bits"] or (name.startswith("everybody-exact") and len(ranks) > 2 and rank["apart"] <= 1e-7), name


def assert_rejected(folder, rejected):
    """Nobody before step FROM, then one rank, always."""
    records = read_run(folder).timeline()
    assert all(record.kept_workers == 4 for record in records[:FROM]), folder
    for record in records[FROM:]:
        assert record.kept_workers == 3, (folder, record.step)
        assert record.weight_W[rejected] == 0, (folder, record.step)
        assert not record.skipped


def assert_skipped(ranks):
    prints = ranks[0]["prints"]
    assert len(set(prints[: FROM - 1])) == FROM - 1, "steps before should have moved the weights"
    assert len(set(prints[FROM - 1 :])) == 1, "a skipped step moved the weights"
    assert_equal_everywhere("skipped", ranks)


def test_one_rank_of_four_goes_wrong(tmp_path):
    names = ["flipped-sketch-model", "nan-exact-bucket", "skipped-sketch-model", "broken-weighting"]
    results = trained(tmp_path, 4, names)
    for name in names[:2]:
        assert_equal_everywhere(name, results[name])
        assert results[name][0]["finite"]
    assert_rejected(tmp_path / "flipped-sketch-model", 1)
    told = read_run(tmp_path / "flipped-sketch-model").attempts[0].steering
    assert told == "AgreementFilter(max_distance=0.97, order='any', fusion='mean'), sketch gram, scope model"
    assert_skipped(results["skipped-sketch-model"])
    assert results["skipped-sketch-model"][0]["state_kept"]
    assert results["skipped-sketch-model"][0]["state_moved"]
    assert all(record.skipped for record in read_run(tmp_path / "skipped").timeline()[FROM:])
    errors = [rank["error"] for rank in results["broken-weighting"]]
    assert "injected" in errors[0]
    assert all("failed on the first worker" in error for error in errors[1:])


def test_everybody_kept_is_plain_ddp(tmp_path):
    names = ["everybody-sketch-model-perceptron", "everybody-exact-bucket-bucket-view"]
    for name, ranks in trained(tmp_path, 2, names).items():
        assert_like_plain(name, ranks)


def test_what_cannot_be_steered_is_refused_on_every_rank(tmp_path):
    for name, ranks in trained(tmp_path, 2, REFUSALS).items():
        assert all(REFUSALS[name] in rank["error"] for rank in ranks), ranks


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "pairs"), [(2, PAIRS), (3, PAIRS[-3:]), *ALL_PAIRS])
def test_everybody_kept_is_plain_ddp_by_many_routes(tmp_path, workers, pairs):
    names = [f"everybody-{pair}" for pair in pairs]
    for name, ranks in trained(tmp_path, workers, names).items():
        assert_like_plain(name, ranks)


@pytest.mark.slow
def test_faults_by_all_routes_and_weightings(tmp_path):
    faults = [f"{fault}-{route}" for fault in ("flipped", "nan") for route in ROUTES]
    results = trained(tmp_path, 4, [*faults, *WEIGHTINGS, "krum", "mean-of-nan"])
    for name, ranks in results.items():
        assert_equal_everywhere(name, ranks)
        assert ranks[0]["finite"] == (name != "mean-of-nan"), name
    for name in [*(fault for fault in faults if fault.endswith("model")), "adaptive", "norm-aware"]:
        assert_rejected(tmp_path / name, 1)
    assert read_run(tmp_path / "windowed").timeline()[-1].weight_W[1] == 0


@pytest.mark.slow
def test_skipped_steps_and_statistics(tmp_path):
    skipped = [*(f"skipped-{route}" for route in ROUTES), "skipped-adamw", "skipped-scaler"]
    finite = ["nobody-finite", "nobody-finite-scaler", "overflow-on-one"]
    results = trained(tmp_path, 4, [*skipped, *finite, "statistics-forgotten", "statistics-kept"])
    for name in skipped:
        assert_skipped(results[name])
        assert results[name][0]["state_kept"], name
    for name in finite[:2]:
        assert_skipped(results[name])
    assert results["nobody-finite-scaler"][0]["scale"] == 2.0**10 / 2**8, "the scaler did not notice"
    assert results["overflow-on-one"][0]["finite"]
    assert results["statistics-forgotten"][0]["frozen"]
    assert not results["statistics-kept"][0]["frozen"]


@pytest.mark.slow
@pytest.mark.soak("steering")
@pytest.mark.parametrize("fault", ["opposite", "random"])
def test_a_bad_rank_costs_nothing_with_the_filter(tmp_path, fault):
    script, result = JOBS.parents[1] / "benchmarks" / "steering_effect.py", tmp_path / "effect.json"
    weightings = ["plain mean", "left out by hand", "AgreementFilter()"]
    options = ["--settings", "clear", "--faults", fault, "--weightings", *weightings, "--json", result]
    outcome = launch(forked(4, script, *options), timeout=900)
    assert outcome.returncode == 0, outcome
    rows = {row["weighting"]: row for row in json.loads(result.read_text())["rows"]}
    assert all(row["bit_equal_on_all_ranks"] for row in rows.values())
    plain, best, filtered = (rows[name] for name in weightings)
    assert best["healthy_cosine"] >= 0.3
    assert filtered["loss"] <= 1.02 * best["loss"]
    assert plain["loss"] >= 1.05 * best["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["sketch", "exact", pytest.param("none", marks=pytest.mark.soak("deaths"))])
def test_a_dead_rank_ends_the_job_as_plain_ddp_would(tmp_path, weighting):
    outcome = launch(forked(3, JOBS / "dying.py", weighting), env={"RESULTS": tmp_path}, timeout=120)
    assert outcome.returncode == 1, outcome
    assert f"ended first, with -{signal.SIGKILL.value}".encode() in outcome.stderr, outcome
    prints = [(tmp_path / f"prints.{rank}").read_text().split() for rank in range(3)]
    alive = min(map(len, prints))
    assert alive >= 5, "the rank died too early"
    assert len({tuple(lines[:alive]) for lines in prints}) == 1, "the ranks parted"


@pytest.mark.slow
def test_a_late_rank_is_waited_for(tmp_path):
    outcome = launch(forked(3, JOBS / "dying.py", "late"), env={"RESULTS": tmp_path}, timeout=120)
    assert outcome.returncode == 0, outcome
    prints = [(tmp_path / f"prints.{rank}").read_text().split() for rank in range(3)]
    assert len({tuple(lines) for lines in prints}) == 1
    assert len(prints[0]) == 20


@pytest.mark.slow
def test_a_loss_scaler_that_starts_too_high_comes_down(tmp_path):
    """Also where only one of the two workers overflows, so that nobody is left to agree with."""
    command = under_unisono(torchrun(2, SCRIPTS / "mixed.py"), "--weighting", "agreement", "--out", tmp_path / "run")
    outcome = launch(command, env={"WEIGHTS_OUT": tmp_path / "weights", "PYTHONPATH": str(SCRIPTS)})
    assert outcome.returncode == 0, outcome
    assert len({path.read_text() for path in tmp_path.glob("weights.*")}) == 1
    # It starts where even squares of gradients overflow, and would need twice as many steps to leave that.
    assert b"skipped 31" in outcome.stdout, outcome
    assert b"no_sync" not in outcome.stderr, outcome


@pytest.mark.slow
def test_unusual_loops(tmp_path):
    skipping = ["closure", "closure-lbfgs", "two-optimizers", "zeroed-in-place", "unused"]
    names = [*skipping, "under-autocast", "wrapped-again", "resumed", "copied", "attached-twice", "alone"]
    results = trained(tmp_path, 2, names, job="steered_loops.py")
    for name in skipping:
        assert_skipped(results[name])
    assert all(rank["seen"] for rank in results["zeroed-in-place"])
    assert_equal_everywhere("under-autocast", results["under-autocast"])
    assert all(rank["moved"] for rank in results["under-autocast"])
    assert results["wrapped-again"][0]["moved"] == [False, True]
    # Once to show it, then for two passes of each of three steps.
    assert [step for step in results["resumed"][0]["asked_at"] if step] == [5000, 5000, 5001, 5001, 5002, 5002]
    first, second = results["alone"]
    assert "Found nothing of it from rank 1 in 2 s" in first["error"]
    assert second["error"] is None
