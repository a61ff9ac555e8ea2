"""`unisono diagnose` on run files with and without a fault."""

import json
import math

import pytest

import invented_runs as invented
from unisono.cli import main as cli
from unisono.records import AttemptRecord, EndRecord, FactsRecord, NoteRecord, RunRecord, StepRecord, WorkerFacts
from unisono.records.runfile import RunWriter

FAULT_FROM = 40
STEPS = 60


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(run_dir, shared=(), attempt=1, steps=STEPS, torch=(), ended="unknown"):
    """A run of four workers; from step 40 on those in `shared` read the same data."""
    writer = RunWriter(run_dir)
    if writer.needs_header:
        writer.write(RunRecord(1, "the-run", 1.5, "train", "0.1"))
    workers = tuple(WorkerFacts(rank, "node", 100 + rank, f"cuda:{rank}") for rank in range(4))
    writer.write(AttemptRecord(attempt, 1.5, 4, 0, workers, tells_end=True))
    if torch:
        writer.write(FactsRecord(attempt, 0, 1.5, "settings", differ={"torch": torch}))
    for step in range(steps):
        same = tuple(shared[0] if worker in shared else worker for worker in range(4)) if shared else ()
        same = same if step >= FAULT_FROM else ()
        writer.write(StepRecord(attempt, step, 1.5, compared=4, fresh=True, same_content_W=same))
    if ended:
        writer.write(EndRecord(attempt, steps - 1, 1.5, steps, 0, 0, ended=ended))
    writer.close()


def diagnose(capsys, *arguments):
    code = cli.main(["diagnose", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys, *arguments):
    return json.loads(diagnose(capsys, *arguments, "--json")[1])


def test_a_healthy_run(capsys):
    write("run")
    code, out, err = diagnose(capsys, "run")
    assert (code, err) == (0, "")
    assert out.startswith("healthy: 60 steps, 4 workers, ")


def test_a_fault_is_named_with_ranks_and_steps(capsys):
    write("run", shared=(1, 3))
    code, out, _ = diagnose(capsys, "run/run.jsonl")
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "1 critical finding, nothing wrong seen up to step 39"
    assert " ".join(lines[2].split()) == "UN101 Several workers load the same data ranks 1, 3 since step 40"
    assert lines[-1] == "more: unisono explain UN101"


def test_what_differs_between_the_workers_is_shown(capsys):
    write("run", torch=("2.6", "2.6", "2.5", "2.6"))
    assert "settings: torch  2.6    0, 1, 3" in diagnose(capsys, "run")[1]


def test_json_has_the_names_of_the_contract(capsys):
    write("run", shared=(1, 3))
    found = as_json(capsys, "run")
    assert list(found)[:4] == ["run", "steps", "workers", "verdict"]
    assert (found["run"], found["steps"], found["workers"], found["verdict"]) == ("the-run", 60, 4, "critical")
    assert (found["last_healthy_step"], found["muted"], found["checks"]["UN101"]) == (39, {}, "found")
    (finding,) = found["findings"]
    assert {
        "code": "UN101",
        "slug": "duplicated-data",
        "title": "Several workers load the same data",
        "severity": "critical",
        "state": "open",
        "first_step": 40,
        "last_step": 59,
        "ranks": [1, 3],
        "where": ["node cuda:1", "node cuda:3"],
    }.items() <= finding.items()
    assert set(finding["causes"][0]) == {"slug", "text", "confidence"}
    assert all(isinstance(finding[name], list) for name in ("remedies", "causes"))
    assert set(finding) >= {"evidence", "pattern"}


def test_json_stays_strict_with_numbers_that_are_not_finite(capsys, monkeypatch):
    from unisono.diagnose.rules import RULES

    def report(rule, record, run_state):
        rule.report(record.step, run_state, why="", causes={}, evidence={"norm": float("nan"), "top": float("inf")})

    monkeypatch.setattr(RULES[0], "on_step", report, raising=False)
    write("run")
    out = diagnose(capsys, "run", "--json")[1]
    (finding,) = [
        one for one in json.loads(out, parse_constant=pytest.fail)["findings"] if one["code"] == RULES[0].code
    ]
    assert finding["evidence"] == {"norm": "nan", "top": "inf"}


def test_markdown_is_for_pasting(capsys):
    write("run", shared=(1, 3))
    out = diagnose(capsys, "run", "--markdown")[1]
    assert out.startswith("### unisono: 1 critical finding, nothing wrong seen up to step 39\n")
    assert "**UN101 Several workers load the same data** (critical; ranks 1, 3, since step 40)" in out


@pytest.mark.parametrize(
    ("shared", "level", "code"),
    [((), "info", 0), ((1, 3), "info", 1), ((1, 3), "warning", 1), ((1, 3), "critical", 1)],
)
def test_fail_on_decides_the_exit_code(shared, level, code, capsys):
    write("run", shared)
    assert diagnose(capsys, "run", "--fail-on", level)[0] == code
    assert diagnose(capsys, "run", "--json", "--fail-on", level)[0] == code


def test_fail_on_does_not_fail_below_its_level(capsys, monkeypatch):
    from unisono.diagnose.rules.un101_duplicated_data import DuplicatedData

    original = DuplicatedData.report
    monkeypatch.setattr(DuplicatedData, "report", lambda *a, **k: original(*a, **(k | {"severity": "warning"})))
    write("run", shared=(1, 3))
    codes = [diagnose(capsys, "run", "--fail-on", level)[0] for level in ("info", "warning", "critical")]
    assert codes == [1, 1, 0]


def test_fail_on_counts_what_is_resolved_only_if_asked(capsys):
    write("run", shared=(1, 3))
    write("run", attempt=2)
    found = as_json(capsys, "run")
    assert (found["verdict"], found["findings"][0]["state"]) == ("healthy", "resolved")
    assert diagnose(capsys, "run", "--fail-on", "info")[0] == 0
    assert diagnose(capsys, "run", "--fail-on", "critical", "--fail-on-resolved")[0] == 1


@pytest.mark.parametrize(
    ("ended", "verdict", "words"),
    [
        ("", "broken", "broken: the job was killed, or ended without a word, after step 59; 60 steps, 4 workers"),
        ("killed", "broken", "broken: the job was killed after step 59"),
        ("crashed", "broken", "broken: the job crashed after step 59; 60 steps, 4 workers"),
        ("unknown", "healthy", "healthy: 60 steps, 4 workers"),
    ],
)
def test_a_job_that_did_not_end_well_is_not_healthy(ended, verdict, words, capsys):
    write("run", ended=ended)
    found = as_json(capsys, "run")
    assert (found["verdict"], found["heard"]["ended"]) == (verdict, ended or "killed")
    code, out, _ = diagnose(capsys, "run", "--fail-on", "critical")
    assert code == (3 if verdict == "broken" else 0)
    assert " ".join(out.split()).startswith(words)


def test_fail_on_resolved_alone_is_a_mistake(capsys):
    write("run")
    code, _, err = diagnose(capsys, "run", "--fail-on-resolved")
    assert code == 2
    assert "`--fail-on-resolved` should come with `--fail-on`" in err


def test_the_checks_are_listed_if_asked(capsys):
    write("run")
    plain, listed = (diagnose(capsys, "run", *more)[1] for more in ((), ("--checks",)))
    assert "not-yet-possible" not in plain
    assert "\nUN002  " in listed
    assert listed.count("not-yet-possible: needs ") > 3
    assert diagnose(capsys, "run", "--checks", "--markdown")[1].count("\n| UN") == len(as_json(capsys, "run")["checks"])


def test_the_score_of_the_manuals_is_told_beside_its_check(capsys, place):
    norms = {"grad_norm": lambda step: 40.0 if step == 150 else 1.0}
    invented.write(place / "run", invented.header(), invented.attempt(4), *invented.steps(**norms), invented.end(199))
    score = "GSS (gradient norm over its mean in the 100 readings before) above 2 at 1 of"
    for options, times in (((), 1), (("--checks",), 2), (("--markdown",), 1)):
        assert " ".join(diagnose(capsys, "run", *options)[1].split()).count(score) == times, options


@pytest.mark.parametrize("name", ["UN101", "un101", "duplicated-data", "UN101,UN101"])
def test_an_ignored_finding_is_muted_but_counted(name, capsys):
    write("run", shared=(1, 3))
    found = as_json(capsys, "run", "--ignore", name)
    assert (found["findings"], found["verdict"]) == ([], "healthy")
    assert (found["muted"], found["checks"]["UN101"]) == ({"UN101": 40}, "off")
    code, out, _ = diagnose(capsys, "run", "--ignore", name, "--fail-on", "info")
    assert code == 0
    assert "found but ignored as asked: UN101 since step 40" in out


def test_unreadable_lines_are_counted_and_never_fatal(capsys, place):
    write("run", shared=(1, 3))
    with (place / "run/run.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n{"type":"step"\n{"type":"step","att')
    code, out, err = diagnose(capsys, "run")
    assert (code, err) == (0, "")
    assert "3 lines of the run file could not be read" in out
    assert as_json(capsys, "run")["unreadable_lines"] == 3


def test_a_run_without_steps_is_not_called_healthy(capsys):
    writer = RunWriter("run")
    writer.write(RunRecord(1, "the-run", 1.5, "train", "0.1"))
    writer.write(NoteRecord(1, 0, 1.5, "hello"))
    code, out, _ = diagnose(capsys, "run", "--fail-on", "critical")
    assert code == 3
    assert out.startswith("unheard: nothing was heard: no process with torch has started")


def test_further_models_of_the_job_are_pointed_at(capsys):
    write("run")
    write("run/model-2")
    assert "model-2" in diagnose(capsys, "run")[1]
    assert as_json(capsys, "run")["further_models"] == ["model-2"]


BAD_INPUT = {
    "nothing": ((), "required: RUN"),
    "missing": (("none",), "Found nothing at `none`"),
    "empty file": (("empty",), "Found none in"),
    "not a run": (("text",), "1 unreadable lines"),
    "newer format": (("newer",), "pip install -U unisono"),
    "two forms": (("run", "--json", "--markdown"), "not allowed with"),
    "unknown level": (("run", "--fail-on", "fatal"), "invalid choice: 'fatal'"),
    "unknown code": (("run", "--ignore", "UN1O1"), "Did you mean UN101"),
    "no code": (("run", "--ignore", ""), "Found ``"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_gives_one_line_and_2(arguments, words, capsys, place):
    write("run")
    (place / "empty").touch()
    (place / "text").write_text("\x1b[31mhello\n")
    header = '{"type":"run","format":1,"run":"r","time":1.5,"script":"","unisono":""}\n'
    (place / "newer").write_text(header.replace('"format":1', '"format":2'))
    code, out, err = diagnose(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert "unexpected" not in err


def test_what_the_guard_did_is_in_the_json(capsys, tmp_path):
    acted = invented.decision(7, "roll-back, skip", "huge", to_step=3, ranks=(2,), evidence={"norm": math.nan})
    run = invented.write(tmp_path, invented.header(), invented.attempt(4), *invented.steps(4, 20), acted)
    (action,) = as_json(capsys, str(run))["actions"]
    expected = {"id": "1-7-1", "step": 7, "action": "roll-back, skip", "reason": "huge", "to_step": 3, "dry": False}
    assert expected.items() <= action.items()
    assert (action["ranks"], action["evidence"]) == ([2], {"norm": "nan"})
