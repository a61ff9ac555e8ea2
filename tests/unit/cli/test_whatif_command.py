"""`unisono lab whatif`: numbers that can be worked out by hand, what is advised, and what cannot be replayed."""

import json
import math
import sys
from itertools import pairwise

import pytest
import torch

import invented_runs
from launch import SCRIPTS, launch, torchrun, under_unisono
from unisono.cli import main as cli
from unisono.lab.whatif import replay as whatif
from unisono.lab.whatif.replay import GramReadings, cosine_with_mean, gram_of
from unisono.records import StepRecord

AGREED = ((1, 0.5, 0.5), (0.5, 1, 0.5), (0.5, 0.5, 1))
"""Each one's cosine with the sum of the others is 1 / sqrt(3): a distance of 0.42."""

LAST_OPPOSED = ((1, 0.5, -0.5), (0.5, 1, -0.5), (-0.5, -0.5, 1))
"""The last one's distance to the sum of the others is 1.58; the first two are 0.5 apart."""

FIRST_OPPOSED = ((1, -0.5, -0.5), (-0.5, 1, 0.5), (-0.5, 0.5, 1))


def reading(step, cos_WW=AGREED, norm_W=(1.0, 1.0, 1.0), attempt=1, **fields):
    finite_W = tuple(norm is not None and math.isfinite(norm) for norm in norm_W)
    return StepRecord(attempt, step, 1e9, True, finite_W=finite_W, norm_W=norm_W, cos_WW=cos_WW, **fields)


def silent(step, workers=3, attempt=1):
    return StepRecord(attempt, step, 1e9, finite_W=(True,) * workers)


def written(tmp_path, *records, workers=3, **options):
    folder = tmp_path / "run"
    return str(invented_runs.write(folder, invented_runs.header(), invented_runs.attempt(workers, **options), *records))


def answered(capsys, run, *options):
    assert cli.main(["lab", "whatif", run, "--json", *options]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def told(capsys, run, *options):
    assert cli.main(["lab", "whatif", run, *options]) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments):
    assert cli.main(["lab", "whatif", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def noisy(count, common, workers=4, opposed=None):
    """Cosines of random vectors of which a share is common to all workers; one may have the wrong sign."""
    draw = torch.Generator().manual_seed(0)
    for step in range(count):
        shared = torch.randn(500, generator=draw) * math.sqrt(common)
        vectors = shared + torch.randn(workers, 500, generator=draw) * math.sqrt(1 - common)
        if opposed is not None:
            vectors[opposed] *= -1
        cos_WW = torch.corrcoef(vectors).tolist()
        yield reading(step, tuple(map(tuple, cos_WW)), tuple(vectors.norm(dim=1).tolist()))


def test_the_numbers_are_those_worked_out_by_hand(tmp_path, capsys):
    run = written(tmp_path, silent(0), reading(1), silent(2), reading(3, LAST_OPPOSED))
    answer = answered(capsys, run, "--grid", "2,0.9,0.45,0.4")
    counted = {name: answer[name] for name in ("workers", "readings", "steps", "first_step", "last_step")}
    assert counted == {"workers": 3, "readings": 2, "steps": 4, "first_step": 1, "last_step": 3}
    rows = {row["value"]: {**row, "value": None, "weighting": None} for row in answer["rows"]}
    assert list(rows) == [0.4, 0.45, 0.9, 2.0]
    names = (
        "keep_rate",
        "skipped",
        "effective_workers",
        "cosine_with_mean",
        "most_rejected_rank",
        "most_rejected_rate",
    )
    numbers = {value: tuple(row[name] for name in names) for value, row in rows.items()}
    assert numbers[0.4] == (None, 2, None, None, None, None)
    assert numbers[0.45] == (1, 1, pytest.approx(3), pytest.approx(1), None, None)
    # Without the last: the update's square is 3/4, that of the mean 2/9, their product 1/3.
    cosine = (1 + 1 / 3 / math.sqrt(3 / 4 * 2 / 9)) / 2
    assert numbers[0.9] == (pytest.approx(5 / 6), 0, pytest.approx(2.5), pytest.approx(cosine), 2, 0.5)
    assert numbers[2.0] == (1, 0, pytest.approx(3), pytest.approx(1), None, None)


def test_the_table_and_what_it_does_not_say(tmp_path, capsys):
    out = told(capsys, written(tmp_path, reading(0), silent(1), reading(2, LAST_OPPOSED)), "--grid", "0.4,0.9")
    assert out.startswith(
        "What `agreement` would have done with 3 workers in 2 readings of 3 steps,\nbetween steps 0 and 2"
    )
    assert "max_distance    kept         skipped  effective  cosine  most rejected\n" in out
    assert "        0.40       -       2 (100 %)          -       -  -\n" in out
    assert "        0.90    83 %         0 (0 %)       2.50   0.908  rank 2 (50 %)\n" in out
    assert "later steps would have" in out
    assert "Too few readings to recommend a value" in out
    assert out.endswith("Record more with: unisono run --every 1 -- CMD...\n")
    assert max(map(len, out.splitlines())) <= 80


def test_the_usual_values_and_the_one_asked_for(tmp_path, capsys):
    run = written(tmp_path, reading(0))
    usual = [0.8, 0.9, 0.95, 0.97, 0.99, 1.0, 1.01, 1.05, 2.0]

    def values(*options):
        return [row["value"] for row in answered(capsys, run, *options)["rows"]]

    assert values() == usual
    assert values("--weighting", "agreement:max_distance=0.93") == sorted([*usual, 0.93])
    assert values("--weighting", "agreement", "--grid", "0.95,0.9,0.9") == [0.9, 0.95]
    assert values("--weighting", "adaptive") == [0.3, 0.5, 0.7]
    assert values("--weighting=adaptive:share=0.4") == [0.3, 0.4, 0.5, 0.7]


def test_other_options_apply_to_every_row(tmp_path, capsys):
    run = written(tmp_path, *(reading(step, FIRST_OPPOSED) for step in range(5)))
    assert [row["skipped"] for row in answered(capsys, run, "--grid", "0.8,0.9")["rows"]] == [0, 0]
    sequential = answered(capsys, run, "--grid", "0.8,0.9", "--weighting", "agreement:order=sequential")["rows"]
    assert [row["skipped"] for row in sequential] == [5, 5]
    assert sequential[0]["weighting"] == "agreement:max_distance=0.80,order=sequential"


def test_length_counts_where_that_is_asked_for(tmp_path, capsys):
    run = written(tmp_path, reading(0, norm_W=(1.0, 1.0, 50.0)))
    (plain,) = answered(capsys, run, "--grid", "0.9")["rows"]
    (aware,) = answered(capsys, run, "--grid", "0.9", "--weighting", "agreement:norm_aware=on")["rows"]
    assert (plain["keep_rate"], aware["most_rejected_rank"]) == (1, 2)
    assert aware["weighting"] == "agreement:max_distance=0.90,norm_aware=on"


def test_a_weighting_with_a_memory_begins_every_row_without_it(tmp_path, capsys):
    run = written(tmp_path, *noisy(60, 0.02, 3))
    together = answered(capsys, run, "--weighting", "adaptive")["rows"]
    alone = [
        answered(capsys, run, "--weighting", "adaptive", "--grid", str(value))["rows"][0] for value in (0.3, 0.5, 0.7)
    ]
    assert together == alone
    assert together[0]["keep_rate"] < 1


def test_gradients_of_zeros_and_such_as_are_not_finite(tmp_path, capsys):
    unknown = ((1, 0.5, None), (0.5, 1, None), (None, None, None))
    records = [reading(step, unknown, (1.0, 1.0, norm)) for step, norm in enumerate((0.0, math.nan, math.inf, None))]
    row = answered(capsys, written(tmp_path, *records), "--grid", "0.9")["rows"][0]
    assert (row["keep_rate"], row["most_rejected_rank"], row["most_rejected_rate"]) == (pytest.approx(2 / 3), 2, 1)
    # Only with the zeros is there a plain mean, and it has the direction of the update.
    assert row["cosine_with_mean"] == pytest.approx(1)


def test_inner_products_from_cosines_and_norms():
    gram_WW = gram_of(((1, 0.5, None), (0.5, 1, None), (None, None, None)), (2.0, 3.0, 0.0))
    assert gram_WW.tolist() == [[4, 3, 0], [3, 9, 0], [0, 0, 0]]
    assert gram_of(((1, None), (None, None)), (2.0, None))[1].isnan().all()


def test_no_cosine_with_a_mean_of_zero():
    gram_WW = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert cosine_with_mean(gram_WW, torch.tensor([1.0, 0.0], dtype=torch.float64)) is None


def test_an_attempt_takes_the_place_of_what_it_does_again(tmp_path, capsys):
    first = [reading(step, LAST_OPPOSED) for step in range(10)]
    again = [invented_runs.attempt(3, 2, 4), *(reading(step, attempt=2) for step in range(4, 8))]
    answer = answered(capsys, written(tmp_path, *first, *again), "--grid", "0.9")
    assert (answer["readings"], answer["steps"], answer["last_step"]) == (8, 8, 7)
    assert answer["rows"][0]["most_rejected_rate"] == 0.5


def test_only_the_newest_number_of_workers_counts(tmp_path, capsys):
    fewer = ((1, 0.5), (0.5, 1))
    later = [invented_runs.attempt(2, 2, 5), silent(5, 2, 2), reading(6, fewer, (1.0, 1.0), attempt=2)]
    answer = answered(capsys, written(tmp_path, *(reading(step) for step in range(5)), *later))
    assert (answer["workers"], answer["readings"], answer["steps"]) == (2, 1, 2)


def test_broken_lines_are_passed_over(tmp_path, capsys):
    run = written(tmp_path, reading(0), reading(1, AGREED[:2]), reading(2))
    with open(f"{run}/run.jsonl", "a") as file:
        file.write('garbage\n{"kind":"step","att')
    answer = answered(capsys, run)
    assert (answer["readings"], answer["steps"]) == (2, 2)


def test_workers_are_called_by_the_launchers_numbers(tmp_path, capsys):
    run = written(tmp_path, reading(0, LAST_OPPOSED), ranks=(3, 5, 7))
    assert answered(capsys, run, "--grid", "0.9")["rows"][0]["most_rejected_rank"] == 7


def test_of_a_long_run_readings_are_taken_from_all_of_it(monkeypatch):
    monkeypatch.setattr(whatif, "MOST", 20)
    readings = GramReadings()
    for step in range(1000):
        readings.see(reading(step))
    steps = [one.step for one in readings.kept]
    assert 10 <= len(steps) <= 20
    assert steps[0] < 100
    assert steps[-1] >= 900
    assert len({later - sooner for sooner, later in pairwise(steps)}) == 1
    assert readings.steps == 1000


def test_the_strictest_value_that_leaves_healthy_workers_alone(tmp_path, capsys):
    out = told(capsys, run := written(tmp_path, *noisy(150, 0.05), workers=4))
    answer = answered(capsys, run)
    rows = {row["value"]: row for row in answer["rows"]}
    values = list(rows)
    best = answer["recommended"]
    stricter = rows[values[values.index(best) - 1]]
    assert values[0] < best < 2
    assert rows[best]["keep_rate"] >= 0.95
    assert rows[best]["skipped"] < 1.5
    assert stricter["keep_rate"] < 0.95 or stricter["skipped"] >= 1.5
    assert out.endswith(f"Try it with: unisono run --weighting agreement:max_distance={best:.2f} -- CMD...\n")


def test_a_value_that_skips_one_step_in_a_hundred_is_not_recommended(tmp_path, capsys):
    apart = ((1, -0.4, -0.4), (-0.4, 1, -0.4), (-0.4, -0.4, 1))

    def recommended(name, skipped):
        records = [reading(step, apart if step < skipped else AGREED) for step in range(110)]
        answer = answered(capsys, written(tmp_path / name, *records), "--grid", "0.9")
        assert (answer["rows"][0]["keep_rate"], answer["rows"][0]["skipped"]) == (1, skipped)
        return answer["recommended"]

    assert (recommended("one", 1), recommended("two", 2)) == (0.9, None)


def test_nothing_is_recommended_where_workers_have_little_in_common(tmp_path, capsys):
    run = written(tmp_path, *noisy(120, 0.0), workers=4)
    out = told(capsys, run, "--grid", "0.9,0.97,2")
    assert "No value is recommended" in out
    assert out.endswith(f"unisono lab whatif {run} --weighting adaptive\n")
    assert "unisono run --weighting agreement:window=32" in told(
        capsys, run, "--weighting", "adaptive", "--grid", "0.99"
    )
    assert answered(capsys, run, "--grid", "0.9,0.97,2")["recommended"] is None
    asked = told(capsys, run, "--grid", "0.9", "--weighting", "agreement:max_distance=0.95")
    assert asked.endswith("Try it with: unisono run --weighting agreement:max_distance=0.95 -- CMD...\n")


def test_a_worker_that_a_finding_names(tmp_path, capsys):
    run = str(invented_runs.run(tmp_path / "run", opposed=2))
    out = told(capsys, run)
    assert "UN501 names rank 2, since step" in out
    assert "would have left it" in out
    assert "max_distance=1.05" in out
    assert "of the other workers" in out
    assert f"Mend the fault first: unisono diagnose {run}\n" in out
    answer = answered(capsys, run)
    (named,) = answer["named"]
    assert (named["code"], named["ranks"], named["value"], named["rate"]) == ("UN501", [2], 1.05, 1)
    assert answer["recommended"] == 0.8
    assert "None of these would have left it out" in " ".join(told(capsys, run, "--grid", "1.9,2").split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--weighting", "krum"), "Found `krum`"),
        (("--weighting", "mean"), "which keeps everybody"),
        (("--weighting", "agreement:window=8"), "Found `window`, which needs more than that"),
        (("--weighting", "agreement:preconditioned=on"), "Found `preconditioned=on`"),
        (("--weighting", "agreement:gram=exact"), "Found `gram=exact`"),
        (("--weighting", "adaptive:scope=bucket"), "Found `scope=bucket`"),
        (("--weighting", "agreement:max_distance=3"), "Found `3`"),
        (("--grid", "0.9,often"), "Found `often`"),
        (("--grid", "0.9,2.5"), "from 0 to 2. Found `2.5`"),
        (("--grid", ","), "Write: --grid 0.9,0.95"),
        (("--weighting", "adaptive", "--grid", "1"), "Found `1`"),
    ],
)
def test_what_cannot_be_replayed_is_refused(options, words, tmp_path, capsys):
    assert words in refused(capsys, written(tmp_path, reading(0)), *options)


def test_runs_without_anything_to_replay(tmp_path, capsys):
    def refusal(name, *records, workers=3):
        return refused(capsys, written(tmp_path / name, *records, workers=workers))

    assert "Found one worker, alone" in refusal("one", reading(0, ((1,),), (1.0,)), workers=1)
    assert "no reading of gradients in 2 steps" in refusal("unheard", silent(0), silent(1))
    assert "no reading of gradients in 0 steps" in refusal("empty")
    nine = refusal("nine", reading(0, (), (1.0,) * 9), workers=9)
    assert "Found 9 workers and no cosines of pairs: above 8 workers" in nine
    assert "Found 1 readings without them" in refusal("lost", reading(0, ()))
    assert "Found nothing" in refused(capsys, str(tmp_path / "nowhere"))


def test_without_torch_the_extra_is_named(tmp_path, capsys, monkeypatch):
    run = written(tmp_path, reading(0))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert 'pip install "unisono[torch]"' in refused(capsys, run)


@pytest.mark.slow
@pytest.mark.soak("steering")
def test_a_real_run_of_four_processes(tmp_path, capsys):
    command = under_unisono(torchrun(4, SCRIPTS / "closure.py"), "--every", "1", "--out", tmp_path / "run")
    environment = {"WEIGHTS_OUT": tmp_path / "weights", "PYTHONPATH": str(SCRIPTS)}
    outcome = launch(command, cwd=tmp_path, env=environment)
    assert outcome.returncode == 0, outcome
    answer = answered(capsys, str(tmp_path / "run"))
    assert (answer["workers"], answer["steps"]) == (4, 40)
    assert answer["readings"] >= 38
    rates = [row["keep_rate"] for row in answer["rows"]]
    assert rates[-1] == 1
    assert rates[-1] > rates[0] or answer["rows"][0]["skipped"] == 0
