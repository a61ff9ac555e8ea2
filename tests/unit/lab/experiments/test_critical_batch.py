"""The experiment on batch sizes: the fit, the order of its runs, and a small one from end to end."""

import json
import math

import pytest
import torch

from unisono.cli import main as cli
from unisono.common.errors import UserError
from unisono.lab.experiments.critical_batch import task as tasks
from unisono.lab.experiments.critical_batch.experiment import noise, told
from unisono.lab.experiments.critical_batch.fit import fitted
from unisono.lab.experiments.critical_batch.plan import IDENTITY, REAL, SMALL, TUNED_WITH, Plan
from unisono.lab.experiments.critical_batch.task import CharacterTask, Way, generated_text, read_text, train
from unisono.records import StepRecord
from unisono.weightings import AgreementFilter, Mean


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_fit_finds_what_the_steps_were_made_of():
    found = fitted({batch: 500 * (1 + 300 / batch) for batch in (4, 32, 256, 2_048)})
    assert found.value == pytest.approx(300, rel=0.01)
    assert found.fewest_steps == pytest.approx(500, rel=0.01)
    assert found.steps(300) == pytest.approx(1_000, rel=0.01)
    assert found.off == pytest.approx(1.0, abs=0.01)


def test_its_interval_covers_in_nine_of_ten_cases():
    random, covered = torch.Generator().manual_seed(0), 0
    for _ in range(100):
        noise_B = torch.randn(8, generator=random).mul(0.1).exp().tolist()
        sizes = [2 ** (2 + number) for number in range(8)]
        found = fitted({size: (1 + 100 / size) * off for size, off in zip(sizes, noise_B, strict=True)})
        covered += found.low <= 100 <= found.high
    assert 82 <= covered <= 97


def test_where_larger_batches_always_help_there_is_no_upper_end():
    random = torch.Generator().manual_seed(1)
    steps = {size: 1e6 / size * float(torch.randn((), generator=random).mul(0.05).exp()) for size in (4, 16, 64, 256)}
    assert fitted(steps).high == math.inf


def test_two_sizes_are_too_few():
    with pytest.raises(UserError, match="takes 3 batch sizes"):
        fitted({4: 10.0, 8: 6.0})


def run_of(one, extent, steps, reached=True):
    return one.identity(extent) | {"steps": steps, "reached": reached}


def follow(extent, steps_of, most=10_000):
    """Tasks in the order in which they are done, and the runs."""
    runs, order = [], []
    for _ in range(most):
        done = {tuple(run[name] for name in IDENTITY) for run in runs}
        left = [one for one in Plan(extent, runs).tasks() if tuple(one.identity(extent).values()) not in done]
        if not left:
            return order, runs
        steps = steps_of(left[0].way)
        order.append(left[0])
        runs.append(run_of(left[0], extent, min(steps, left[0].most_steps), steps <= left[0].most_steps))
    raise AssertionError("it does not end")


def ideal(way):
    """Steps as the theory has them, where a learning rate of 0.5 is the best, and a filter that takes twice as long."""
    off = 1 + abs(math.log2(way.rate / 0.5))
    return math.ceil((400 + 40_000 / way.batch) * off * (1 if way.micro is None else 2))


def test_tables_fill_evenly_and_rates_are_chosen_by_another_seed():
    order, runs = follow(REAL, ideal)
    tuning = [one for one in order if one.kind == "averaged" and one.way.seed == TUNED_WITH]
    assert order[: len(tuning)] == tuning
    assert [one.way.batch for one in tuning[: len(REAL.batches)]] == list(REAL.batches)
    assert len(tuning) == len(REAL.batches) * len(REAL.rates)
    assert [one.way.seed for one in order if one.kind == "averaged"][len(tuning) :] == [
        seed for seed in REAL.seeds for _ in REAL.batches
    ]
    plan = Plan(REAL, runs)
    assert {plan.best("averaged", Way(batch, 0.0, 0))["rate"] for batch in REAL.batches} == {0.5}
    results = plan.results("averaged", Way(64, 0.0, 0))
    assert {(run["seed"], run["rate"]) for run in results} == {(seed, 0.5) for seed in REAL.seeds}
    assert fitted(plan.steps()).value == pytest.approx(100, rel=0.05)
    assert "critical batch size 1" in told(plan, 0)
    filtered = plan.results("filtered", Way(64, 0.0, 0, 16, 0.97))
    assert {run["seed"] for run in filtered} == set(REAL.seeds)


def test_a_run_is_given_up_when_it_takes_longer_than_the_best():
    order, _ = follow(REAL, ideal)
    first, second = [one for one in order if one.kind == "averaged" and one.way.batch == 8][:2]
    assert first.most_steps == REAL.most_samples // 8
    assert second.most_steps == ideal(first.way)


def test_what_never_reaches_the_target_is_not_tried_with_further_seeds():
    order, runs = follow(SMALL, lambda way: 10**9 if way.batch == 128 else ideal(way) // 10)
    assert {one.way.seed for one in order if one.way.batch == 128} == {TUNED_WITH}
    assert set(Plan(SMALL, runs).steps()) == {8, 32}
    assert "takes 3 batch sizes" in told(Plan(SMALL, runs), 0)


@pytest.fixture(scope="module")
def task():
    return CharacterTask(generated_text(2_000), 1.9)


def test_micro_batches_of_which_all_are_kept_are_the_plain_batch(task, monkeypatch):
    """So plain averaging of micro-batches need not be run once more."""
    plain = train(task, Way(32, 0.25, 1), 60)
    monkeypatch.setattr(tasks, "AgreementFilter", lambda max_distance: Mean())
    parts = train(task, Way(32, 0.25, 1, micro=8, max_distance=0.97), 60)
    assert plain.reached
    assert (parts.steps, parts.skipped, parts.kept) == (plain.steps, 0, 1.0)
    assert parts.loss == pytest.approx(plain.loss, rel=1e-4)


def test_skipped_steps_are_counted(task, monkeypatch):
    monkeypatch.setattr(tasks, "AgreementFilter", lambda max_distance: AgreementFilter(max_distance=0.0))
    found = train(task, Way(32, 0.25, 1, micro=8, max_distance=0.97), 20)
    assert (found.reached, found.steps, found.skipped, found.kept) == (False, 20, 20, 0.0)


def test_a_learning_rate_that_is_too_large_ends_early(task):
    found = train(task, Way(8, 100.0, 1), 5_000)
    assert not found.reached
    assert found.steps < 100


def test_equal_seeds_train_equally(task):
    first, again, other = (train(task, Way(16, 0.25, seed), 40) for seed in (1, 1, 2))
    assert (first.steps, first.loss) == (again.steps, again.loss)
    assert first.loss != other.loss


def steps_of(count, share_of):
    """Readings of two workers whose squared gradients have a share in common."""
    for step in range(count):
        square = (1 + share_of(step)) / 2
        yield StepRecord(
            *(1, step, float(step)),
            heard=True,
            loss_mean=3.0 - step / count,
            norm_W=(1.0, 1.0),
            grad_norm=math.sqrt(square),
            samples_W=(16, 16),
        )


def test_the_noise_scale_is_told_stretch_by_stretch():
    found = noise(tuple(steps_of(400, lambda step: 0.5 if step < 200 else 0.1)))
    values = [stretch["value"] for stretch in found["stretches"]]
    assert values == pytest.approx([16.0] * 5 + [144.0] * 5)
    assert found["scaling"]["value"] == pytest.approx(144.0)
    assert found["stretches"][0]["loss"] == pytest.approx(3.0, abs=0.1)
    assert [stretch["first_step"] for stretch in found["stretches"]] == list(range(0, 400, 40))


def test_without_enough_readings_or_signal_it_is_not_made_up():
    assert noise(tuple(steps_of(15, lambda step: 0.5)))["scaling"] is None
    assert "value" not in noise(tuple(steps_of(15, lambda step: 0.5)))["stretches"][0]
    assert noise(tuple(steps_of(400, lambda step: -0.1)))["scaling"]["value"] is None


def test_without_the_text_it_says_where_it_looked(tmp_path):
    with pytest.raises(UserError, match=r"text/tinyshakespeare.txt. Found no text at"):
        read_text(tmp_path)


@pytest.mark.slow
def test_a_small_one_from_end_to_end_goes_on_where_it_stopped(tmp_path, capsys):
    out = tmp_path / "results.json"
    assert cli.main(["lab", "paper", "critical-batch", "--small", "--out", str(out), "--minutes", "0.0001"]) == 0
    assert "runs are left" in capsys.readouterr().out
    assert len(json.loads(out.read_text())) == 1
    assert cli.main(["lab", "paper", "critical-batch", "--small", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("all runs are done; critical batch size ")
    runs = json.loads(out.read_text())
    assert {run["kind"] for run in runs} == {"averaged", "filtered", "listened"}
    (listened,) = [run for run in runs if run["kind"] == "listened"]
    assert listened["scaling"]["value"] > 0
    before = out.read_bytes()
    assert cli.main(["lab", "paper", "critical-batch", "--small", "--out", str(out)]) == 0
    assert out.read_bytes() == before
