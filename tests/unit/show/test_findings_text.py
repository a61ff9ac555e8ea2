"""Findings as they look on a terminal and in an issue."""

import re
from dataclasses import replace

import pytest

from invented_runs import decision
from unisono.common import terminal
from unisono.diagnose.heard import Heard
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.records import AttemptRecord, FactsRecord, WorkerFacts
from unisono.records.decision_text import DecisionCounts
from unisono.records.finding import Cause, Finding
from unisono.show.analysis.checkup import Checkup
from unisono.show.analysis.rank_differences import differences, ranges
from unisono.show.text.findings import as_text, block
from unisono.show.text.findings_markdown import as_markdown

HEARD = Heard("gradients", 3000, 1.0, 1.0, {}, "finished")
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def found(code="UN101", **changes):
    settings = {
        "code": code,
        "slug": "duplicated-data",
        "title": "Several workers load the same data",
        "severity": "critical",
        "state": "open",
        "first_step": 40,
        "last_step": 99,
        "ranks": (1, 3),
        "where": ("node0 cuda:1", "node1 cuda:1"),
        "why": "they had equal batches in 12 steps in a row",
        "evidence": {"equal_steps": 12, "cosine": 0.998},
        "causes": (Cause("sampler-rank", "the sampler was given the same rank", 0.95), Cause("other", "that", 0.2)),
        "remedies": ("give the sampler rank=dist.get_rank()", "shard `by_rank`"),
        "pattern": "Data Duplication",
    }
    return Finding(**(settings | changes))


def checkup(*findings, **changes):
    settings = {
        "run": "a-run",
        "steps": 3000,
        "workers": 4,
        "last_healthy_step": 39,
        "findings": findings,
        "checks": {"UN101": "found" if findings else "passed", "UN103": "passed"},
        "heard": HEARD,
        "muted": {},
        "differences": (),
    }
    return Checkup(**(settings | changes))


def test_a_finding_is_verdict_why_next():
    assert block(found(), width=80) == [
        "UN101  Several workers load the same data             ranks 1, 3   since step 40",
        "       why   they had equal batches in 12 steps in a row; most likely the",
        "             sampler was given the same rank",
        "       next  give the sampler rank=dist.get_rank()",
        "       or    shard `by_rank`",
        "       where node0 cuda:1, node1 cuda:1",
    ]


@pytest.mark.parametrize("width", [40, 57, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    text = as_text(
        checkup(found(), found(title="A title of many words that say a lot " * 2, ranks=tuple(range(1, 99, 2)))), width
    )
    assert max(map(len, text.splitlines())) <= width


def test_an_info_is_short():
    assert block(found(severity="info", ranks=(), causes=())) == [
        "UN101  Several workers load the same data                          since step 40",
        "       why   they had equal batches in 12 steps in a row",
    ]


def test_symptoms_are_told_with_their_cause():
    symptoms = {"symptoms": "UN405 noise-dominated since step 60"}
    told = " ".join(line.strip() for line in block(found(evidence=symptoms)))
    assert told.endswith("also  seen, and probably caused by this: UN405 noise-dominated since step 60")


@pytest.mark.parametrize(
    ("first", "last", "words"), [(7, 7, "at step 7, resolved"), (7, 1234, "steps 7 to 1,234, resolved")]
)
def test_a_resolved_finding_says_when_it_was(first, last, words):
    assert block(found(state="resolved", first_step=first, last_step=last), width=100)[0].endswith(words)


@pytest.mark.parametrize(
    ("findings", "verdict", "text"),
    [
        ((), "healthy", "healthy: 3,000 steps, 4 workers, 2 checks passed"),
        ((found(),), "critical", "1 critical finding, nothing wrong seen up to step 39"),
        (
            (found(), found(severity="warning")),
            "critical",
            "1 critical and 1 warning findings, nothing wrong seen up to step 39",
        ),
        ((found(severity="info"),), "info", "healthy: 3,000 steps, 4 workers, 1 check passed"),
        ((found(state="resolved"),), "healthy", "healthy again: 1 critical finding resolved, 3,000 steps"),
        (
            (found(severity="warning"), found(state="resolved")),
            "warning",
            "1 warning finding, nothing wrong seen up to step 39",
        ),
    ],
)
def test_the_verdict_is_that_of_the_gravest_open_finding(findings, verdict, text):
    result = checkup(*findings)
    assert result.verdict == verdict
    assert result.verdict_text.startswith(text)


ENDED = {"ended": "killed", "end": "the job was killed after step 12"}
TOO_LITTLE = {"too_little": "12 steps were heard"}


@pytest.mark.parametrize(
    ("findings", "heard", "verdict", "text"),
    [
        ((found(),), ENDED, "critical", "1 critical finding, nothing wrong seen up to step 39; the job was killed"),
        ((found(severity="info"),), ENDED | TOO_LITTLE, "broken", "broken: the job was killed after step 12; 3,000 "),
        ((), ENDED, "broken", "broken: the job was killed after step 12; 3,000 steps, 4 workers, 2 checks passed"),
        ((found("UN502", severity="info"),), ENDED, "info", "healthy: 3,000 steps"),
        (
            (found(state="resolved"),),
            TOO_LITTLE,
            "unheard",
            "unheard: 12 steps were heard; 1 critical finding ",
        ),
        ((found(severity="info"),), TOO_LITTLE, "unheard", "unheard: 12 steps were heard; 3,000 steps, 4 workers"),
        ((), {"ended": "running"}, "healthy", "healthy so far: 3,000 steps"),
        ((), {"level": "optimizer"}, "healthy", "healthy: 3,000 steps, 4 workers, 2 checks passed; heard at the optim"),
        (
            (),
            {"not_judged": ("data order", "directions")},
            "healthy",
            "healthy: 3,000 steps, 4 workers, 2 checks passed; data order and directions not judged",
        ),
    ],
)
def test_what_the_verdict_rests_on_is_said(findings, heard, verdict, text):
    result = checkup(*findings, heard=replace(HEARD, **heard))
    assert result.verdict == verdict
    assert result.verdict_text.startswith(text)


@pytest.mark.parametrize(
    ("findings", "heard", "resolved", "code"),
    [
        ((), {}, False, 0),
        ((), ENDED, False, 3),
        ((), TOO_LITTLE, False, 3),
        ((found(),), ENDED | TOO_LITTLE, False, 1),
        ((found(state="resolved"),), {}, False, 0),
        ((found(state="resolved"),), {}, True, 1),
        ((found("UN502", severity="info"),), ENDED, False, 0),
        ((found("UN404", severity="info", state="resolved"),), ENDED, False, 3),
        ((found("UN105", severity="info"),), ENDED, False, 3),
    ],
)
def test_the_exit_code_is_1_for_findings_and_3_where_nobody_knows(findings, heard, resolved, code):
    assert checkup(*findings, heard=replace(HEARD, **heard)).exit_code("warning", resolved) == code


def test_a_run_that_was_ill_from_the_start():
    assert checkup(found(), last_healthy_step=None).verdict_text == "1 critical finding, wrong from the first step"


def test_what_was_not_looked_at_is_one_clause():
    needs = {f"UN10{nth}": f"not-yet-possible: needs thing {nth}" for nth in range(1, 7)}
    text = as_text(checkup(checks={"UN001": "passed", "UN602": "off", **needs}))
    assert text == "healthy: 3,000 steps, 4 workers, 1 check passed, 6 not looked at"


def test_kinds_get_headings_where_there_are_several():
    text = as_text(checkup(found(), found(severity="info"), found(state="resolved")))
    assert [line for line in text.splitlines() if line in ("critical", "info", "resolved")] == [
        "critical",
        "info",
        "resolved",
    ]
    assert "\ncritical\n" not in as_text(checkup(found(), found()))


@pytest.mark.parametrize(("dry", "text"), [(False, "stopped by the guard at step 812: 3,000 steps"), (True, "healthy")])
def test_a_job_that_the_guard_stopped_is_not_called_healthy(dry, text):
    decision_counts = DecisionCounts()
    decision_counts.add(decision(5))
    decision_counts.add(decision(812, "halt", dry=dry))
    assert checkup(decision_counts=decision_counts).verdict_text.startswith(text)


def test_everything_that_weakens_the_verdict_is_said():
    text = as_text(checkup(muted={"UN105": 12}, unreadable_lines=1, further_models=("model-2",)))
    assert "found but ignored as asked: UN105 since step 12" in text
    assert "1 line of the run file could not be read" in text
    assert "model-2" in text


def test_the_last_line_leads_on():
    assert as_text(checkup(found("UN103"), found())).splitlines()[-1] == "more: unisono explain UN103"
    assert "explain" not in as_text(checkup())


def test_colour_changes_nothing_but_colour():
    result = checkup(found(), found(severity="info"), differences=differences(run_state(("1", "2"))))
    coloured = as_text(result, colour=True)
    assert "\x1b[1;31mUN101\x1b[0m" in coloured
    assert ESCAPE.sub("", coloured) == as_text(result)
    assert "\x1b" not in as_text(result)


def test_text_from_a_run_cannot_steer_the_terminal_or_the_issue():
    nasty = "\x1b[31m<b>`|@all http://a.bc HTTPS://a.bc www.a.bc me@a.bc #12 owner/name#3"
    result = checkup(
        found(why=nasty, where=(nasty,), remedies=()), run=nasty, differences=differences(run_state((nasty, "2")))
    )
    assert "\x1b" not in as_text(result)
    assert "\x1b" not in as_markdown(result)
    markdown = as_markdown(result)
    assert markdown.count("a.bc") > 4
    assert not re.search(r"(?i)://|www\.|@\w|#\d", markdown)
    assert not re.search(r"(?<!\\)[<>`]", markdown.replace("<!-- -->", ""))


def run_state(values_W, fact="torch", topic="settings"):
    workers = tuple(WorkerFacts(10 + worker, "host", 1, "cpu") for worker in range(len(values_W)))
    made = RunState()
    made.see(AttemptRecord(1, 1.5, len(values_W), 0, workers))
    made.see(FactsRecord(1, 0, 1.5, topic, differ={fact: values_W}))
    return made


def test_differences_are_a_table_of_values_and_ranks():
    text = as_text(checkup(differences=differences(run_state(("2.6", "2.5", "2.6", None)))))
    assert text.splitlines()[2:] == [
        "the workers differ in",
        "                   value  ranks",
        "  settings: torch  2.6    10, 12",
        "                   2.5    11",
        "                   -      13",
    ]
    assert "| settings: torch | 2.6 | 10, 12 |" in as_markdown(
        checkup(differences=differences(run_state(("2.6", "2", "2.6"))))
    )


def test_many_different_values_are_cut():
    text = as_text(checkup(differences=differences(run_state(tuple(map(str, range(64)))))))
    assert "and 56 more values" in text
    assert len(text.splitlines()) < 16


def test_sampler_ranks_should_differ():
    assert differences(run_state(("0", "1", "2"), "sampler rank", "loader")) == ()
    assert len(differences(run_state(("0", "1", "1"), "sampler rank", "loader"))) == 1


def test_ranks_are_grouped():
    assert ranges([5, 0, 1, 2, 7, 8]) == "0-2, 5, 7, 8"
    assert ranges(range(0, 40, 2)) == "0, 2, 4, 6, 8, 10 and 14 more"


def test_markdown_has_all_of_a_finding():
    assert as_markdown(checkup(found())).splitlines()[4:] == [
        "**UN101 Several workers load the same data** (critical; ranks 1, 3, since step 40)",
        "",
        "- why: they had equal batches in 12 steps in a row; most likely the sampler was given the same rank",
        "- next: give the sampler rank=dist.get\\_rank()",
        "- or: shard `by_rank`",
        "- where: node0 cuda:1, node1 cuda:1",
        "- evidence: equal\\_steps 12, cosine 0.998",
    ]


def test_the_screen_is_80_wide_and_grey_where_it_is_no_terminal(monkeypatch):
    assert (terminal.width(), terminal.colour()) == (80, False)
    monkeypatch.setattr(terminal, "_is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert (terminal.width(), terminal.colour()) == (40, True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.colour()


def guarded(count=2):
    decision_counts = DecisionCounts()
    for step in range(count):
        decision_counts.add(
            decision(step, reason="a *long* reason of many words, and of more than fit on a line", dry=step == 1)
        )
    return checkup(decision_counts=decision_counts)


def test_what_the_guard_did_is_listed():
    text = as_text(guarded(), width=80)
    assert text.split("\n\n")[1].splitlines() == [
        "what the guard did",
        "  step 0: skipped on all workers: a *long* reason of many words, and of more",
        "    than fit on a line (guard, 1-0-1)",
        "  step 1: would have skipped on all workers: a *long* reason of many words, and",
        "    of more than fit on a line (guard, 1-1-1)",
    ]
    assert "- step 0: skipped on all workers: a \\*long\\* reason" in as_markdown(guarded())
    assert "what the guard did" not in (as_text(checkup()) + as_markdown(checkup())).lower()


def test_of_many_actions_the_last_are_listed():
    lines = as_text(guarded(50), width=200).split("\n\n")[1].splitlines()
    assert lines[0] == "what the guard did, the last 12 of 50 decisions"
    assert [line.split(":")[0] for line in lines[1:]] == [f"  step {step}" for step in range(38, 50)]
