"""`unisono smoke` around a stand-in for a training job, which writes the run file itself."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from unisono import testing
from unisono.cli import bounded_run as trial
from unisono.cli import main as cli
from unisono.cli.bounded_run import StepCounter, Trial, spoken_exit
from unisono.common.errors import UserError
from unisono.diagnose.heard import Heard
from unisono.records import AttemptRecord, RunRecord, StepRecord, WorkerFacts
from unisono.records.runfile import RunWriter, read_run
from unisono.testing import Outcome

JOB = """
import os, signal, subprocess, sys, time
from unisono.records import AttemptRecord, FactsRecord, RunRecord, StepRecord, WorkerFacts
from unisono.records.runfile import RunWriter, continue_or_create

def heard(step):
    values = {"heard": True, "finite_W": (True,) * 4, "norm_W": (1.0,) * 4, "cos_W": (0.2,) * 4, "lr": 0.1}
    values |= {"audits": ("reduced", "weights"), "parts": 1, "compared": 4, "fresh": True, "same_content_W": same}
    return StepRecord(attempt, step, 1.5, **values)

words = sys.argv[1:]
print("a line of the job", flush=True)
if "deaf" in words:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "silent" in words:
    sys.exit(0)
run_dir = os.environ["UNISONO_RUN_DIR"]
for folder in [run_dir] + [f"{run_dir}/model-2"] * ("two" in words):
    attempt = continue_or_create(folder)
    writer = RunWriter(folder)
    if writer.needs_header:
        writer.write(RunRecord(1, os.path.basename(folder), 1.5, "train", "0.1"))
    writer.write(AttemptRecord(attempt, 1.5, 4, 0, tuple(WorkerFacts(rank, "node", 1, "cpu") for rank in range(4))))
    writer.write(FactsRecord(attempt, 0, 1.5, "initial", {"weights": "1"}))
    same = (0, 1, 1, 3) if ("faulty" in words and folder == run_dir) or folder != run_dir else ()
    for step in range(10):
        writer.write(heard(step))
    if "two" in words:
        writer.close()
if "two" in words:
    writer, same = RunWriter(run_dir), ()
if "failing" in words:
    sys.exit(3)
for step in range(10, 100000 if "long" in words else 20 if "short" in words else 40):
    writer.write(heard(step))
    time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("UNISONO")]:
        monkeypatch.delenv(name)
    Path("job.py").write_text(JOB)
    return tmp_path


def smoke(capfd, *words, options=("--out", "run")):
    code = cli.main(["smoke", *options, "--", sys.executable, "job.py", *words])
    out, err = capfd.readouterr()
    return code, out, err


def job_processes():
    """Those that work in this test's folder and carry a mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") == os.getcwd() and trial.MARK.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_healthy_job_is_stopped_after_its_steps(capfd):
    code, out, err = smoke(capfd, "long", options=("--steps", "35", "--out", "run"))
    assert code == 0
    assert out.startswith("healthy: ")
    assert out.splitlines()[-1] == f"run: {os.getcwd()}/run"
    assert (out.count("a line of the job"), err.count("a line of the job")) == (0, 1)
    assert 35 <= len(read_run("run").steps) < 1000
    assert job_processes() == []


def test_a_job_may_end_before_its_steps(capfd):
    code, out, _ = smoke(capfd)
    assert code == 0
    assert out.startswith("healthy: 40 steps, 4 workers, ")


def test_a_fault_is_reported(capfd):
    code, out, _ = smoke(capfd, "faulty", "long", options=("--steps=20", "--out", "run"))
    assert code == 1
    assert "UN101  Several workers load the same data" in out


def test_a_fault_of_a_further_model_counts(capfd):
    code, out, _ = smoke(capfd, "two")
    assert code == 1
    assert "run: healthy: " in out
    assert "model-2: 1 critical finding" in out


def test_a_job_that_fails_is_not_healthy(capfd):
    code, out, _ = smoke(capfd, "failing")
    assert code == 3
    assert out.startswith("the command failed by itself with exit code 3 after 10 steps\n\nbroken: the job crashed ")


def test_a_job_that_records_nothing_is_not_healthy(capfd):
    code, out, _ = smoke(capfd, "silent")
    assert code == 3
    assert out.startswith("unheard: nothing was heard: no process with torch has started")


def test_a_job_of_few_steps_is_neither_healthy_nor_ill(capfd):
    code, out, _ = smoke(capfd, "short")
    assert code == 3
    assert out.startswith("unheard: 20 steps were heard, and it takes 32 to judge a run; 20 steps, 4\n")


def test_earlier_attempts_do_not_count(capfd):
    assert smoke(capfd, "faulty")[0] == 1
    code, out, _ = smoke(capfd)
    assert code == 0
    assert out.startswith("healthy: 40 steps")
    assert len(read_run("run").attempts) == 2


def test_without_out_there_is_a_new_run(capfd, monkeypatch, place):
    monkeypatch.setenv("RANK", "0")
    code, out, _ = smoke(capfd, options=())
    assert code == 0
    assert out.splitlines()[-1].startswith(f"run: {place}/unisono-runs/")
    assert out.splitlines()[-1].endswith("-job")


def test_processes_that_do_not_listen_are_killed_wherever_they_are(capfd, monkeypatch):
    monkeypatch.setattr(trial, "PATIENCE_SECONDS", 0.3)
    assert smoke(capfd, "deaf", "long", options=("--steps", "5", "--out", "run"))[0] in (0, 3)
    assert job_processes() == []
    assert smoke(capfd, "deaf", options=("--out", "other"))[0] == 0
    assert job_processes() == []


def test_the_signals_are_as_before(capfd):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    smoke(capfd)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_what_ends_us_ends_the_job(number, code):
    command = [sys.executable, "-m", "unisono", "smoke", "--steps", "99999", "--out", "run", "--"]
    process = subprocess.Popen(
        [*command, sys.executable, "job.py", "long"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Who starts the tests in the background makes them deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    deadline, file = time.monotonic() + 20, Path("run/run.jsonl")
    while not (file.exists() and b'"step"' in file.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate(timeout=90)
    assert (process.returncode, out) == (code, b"")
    assert job_processes() == []


def test_a_long_silence_is_mentioned_once(capfd, monkeypatch):
    monkeypatch.setattr(trial, "QUIET_SECONDS", 0.1)
    code = cli.main(["smoke", "--", "sleep", "0.6"])
    assert code == 3
    assert capfd.readouterr().err.count("no step recorded in 0 s") == 1


def test_help(capfd):
    assert cli.main(["smoke", "--help"]) == 0
    assert capfd.readouterr().out.startswith("usage: unisono smoke [--steps N]")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], "needs a command behind `--`"),
        (["train.py"], "needs a command behind `--`"),
        (["--"], "`unisono smoke --` needs a command"),
        (["--steps", "0", "--", "true"], "Found `0`"),
        (["--steps", "--", "true"], "Found ``"),
        (["--steps=many", "--", "true"], "Found `many`"),
        (["--banana", "--", "true"], "Found `--banana`"),
        (["--out", "", "--", "true"], "an empty name"),
        (["--", "no-such-command"], "Found `no-such-command`"),
        (["--out", "job.py", "--", "true"], "Name another with --out DIR"),
    ],
)
def test_bad_lines_are_refused_with_what_to_do(line, words, capfd):
    assert cli.main(["smoke", *line]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert "unisono run" not in err


def test_listening_must_not_be_off(capfd, monkeypatch):
    monkeypatch.setenv("UNISONO", "off")
    assert cli.main(["smoke", "--", "true"]) == 2
    assert "Unset it" in capfd.readouterr().err


def test_a_program_that_cannot_be_started(capfd):
    Path("broken").write_text("no program")
    Path("broken").chmod(0o755)
    assert cli.main(["smoke", "--", "./broken"]) == 2
    assert "Exec format error" in capfd.readouterr().err


def test_the_tail_counts_whole_lines_that_were_added(tmp_path):
    file = tmp_path / "run.jsonl"
    tail = StepCounter(file)
    tail.read()
    assert tail.steps == 0
    file.write_text('{"type":"run"}\n{"type":"step","attempt":1}\n{"type":"st')
    tail.read()
    tail.read()
    assert tail.steps == 1
    with file.open("a") as more:
        more.write('ep","attempt":1}\n')
    tail.read()
    assert tail.steps == 2
    assert StepCounter(file).steps == 0


def test_an_end_by_signal_has_a_name():
    assert [spoken_exit(code) for code in (1, -9, -100)] == ["exit code 1", "signal SIGKILL", "signal 100"]


def outcome(monkeypatch, *words, steps=38):
    """`run_script` with the stand-in job in the place of torchrun."""
    real = testing.try_out

    def direct(command, environment, run_dir, steps):
        assert command[-3:] == ["job.py", "--lr", "1"]
        assert "--nproc-per-node=3" in command
        direct = [sys.executable, "job.py", *words]
        return real(direct, environment | {"UNISONO_RUN_DIR": str(run_dir)}, run_dir, steps)

    monkeypatch.setattr(testing, "try_out", direct)
    return testing.run_script("job.py", workers=3, steps=steps, args=("--lr", "1"))


def test_a_script_is_healthy(monkeypatch):
    result = outcome(monkeypatch)
    result.assert_healthy()
    assert not [finding for finding in result.findings if finding.severity != "info"]
    assert read_run(result.run_dir).steps
    with pytest.raises(AssertionError, match="UN101 was not found\n\nhealthy: "):
        result.assert_found("UN101")


def test_a_script_with_a_fault(monkeypatch):
    result = outcome(monkeypatch, "faulty")
    with pytest.raises(AssertionError, match=r"not healthy\n\n1 critical finding.*\n\nUN101  Several workers"):
        result.assert_healthy()
    result.assert_healthy(allow=("UN101",))
    result.assert_healthy(allow="duplicated-data")
    result.assert_found("UN101")
    result.assert_found("duplicated-data", ranks=(2, 1))
    with pytest.raises(AssertionError, match=r"should be found on ranks \[1\], not \[1, 2\]"):
        result.assert_found("UN101", ranks=[1])


@pytest.mark.parametrize(("word", "text"), [("failing", "exit code 3"), ("silent", "nothing was heard")])
def test_a_script_that_fails_or_records_nothing(word, text, monkeypatch):
    with pytest.raises(AssertionError, match=text):
        outcome(monkeypatch, word).assert_healthy(allow=("UN101",))


def test_a_script_that_is_not_there():
    with pytest.raises(UserError, match=r"Found `none.py`"):
        testing.run_script("none.py")


@pytest.mark.parametrize(("severity", "healthy"), [("info", True), ("warning", False), ("critical", False)])
def test_an_info_is_healthy(severity, healthy):
    writer = RunWriter("run")
    writer.write(RunRecord(1, "r", 1.5, "", ""))
    writer.write(AttemptRecord(1, 1.5, 2, 0, (WorkerFacts(0, "n", 1, "cpu"), WorkerFacts(1, "n", 2, "cpu"))))
    for step in range(5):
        writer.write(StepRecord(1, step, 1.5, compared=2, fresh=True, same_content_W=(0, 0)))
    checkup = replace(trial.examine("run"), heard=Heard("gradients", 50, 1.0, 1.0, {}, "finished"))
    (finding,) = checkup.findings
    result = Outcome(Path("run"), Trial(None, 5, (replace(checkup, findings=(replace(finding, severity=severity),)),)))
    with nullcontext() if healthy else pytest.raises(AssertionError, match="not healthy"):
        result.assert_healthy()
