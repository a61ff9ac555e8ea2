"""What every rule keeps to: its names and texts, and that no run, however odd, makes it fail."""

import json
import math
import random
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path

import pytest

from unisono.diagnose import rules
from unisono.diagnose.engine import Diagnosis
from unisono.diagnose.rules import RULES
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.records import RECORD_TYPES, from_line, to_line
from unisono.records.finding import SEVERITIES
from unit.diagnose.rules import streams
from unit.diagnose.rules.build import ALL, SHARDED, attempt, facts, note

CONTRACT = {
    "UN001": ("monitor-degraded", "warning"),
    "UN002": ("ranks-disagree", "critical"),
    "UN101": ("duplicated-data", "critical"),
    "UN102": ("overlapping-shards", "critical"),
    "UN103": ("stale-shuffle", "warning"),
    "UN104": ("toxic-batch", "warning"),
    "UN105": ("uneven-shards", "warning"),
    "UN106": ("sampler-misconfigured", "critical"),
    "UN107": ("tokens-weighted-unequally", "critical"),
    "UN108": ("resume-mismatch", "warning"),
    "UN109": ("incomplete-coverage", "warning"),
    "UN201": ("identical-randomness", "warning"),
    "UN202": ("unequal-initialisation", "critical"),
    "UN301": ("replicas-diverged", "critical"),
    "UN302": ("gradients-not-synchronised", "critical"),
    "UN303": ("optimizer-differs", "critical"),
    "UN304": ("buffers-differ", "warning"),
    "UN305": ("parameters-not-optimised", "warning"),
    "UN306": ("reduction-wrong", "critical"),
    "UN307": ("computed-differently", "critical"),
    "UN308": ("gradient-missing", "critical"),
    "UN401": ("gradient-explosion", "critical"),
    "UN402": ("gradient-vanishing", "warning"),
    "UN403": ("gradient-oscillation", "warning"),
    "UN404": ("non-finite", "critical"),
    "UN405": ("noise-dominated", "info"),
    "UN406": ("consistency-drop", "warning"),
    "UN407": ("consistency-decline", "warning"),
    "UN408": ("dispersion-spike", "warning"),
    "UN409": ("dispersion-rise", "warning"),
    "UN410": ("walk-of-averages", "critical"),
    "UN411": ("norm-dispersion", "warning"),
    "UN412": ("validation-stalls", "warning"),
    "UN501": ("outlier-worker", "critical"),
    "UN502": ("missing-worker", "critical"),
    "UN503": ("slow-worker", "warning"),
    "UN601": ("worker-rejected", "warning"),
    "UN602": ("guard-acted", "info"),
}
"""The public names, and the highest severity of each."""

TO_COME = {"UN107", "UN108", "UN109", "UN306", "UN307", "UN308"}
"""Promised, and not yet required to be there."""

REMARKS = {"UN104", "UN401", "UN405"}
"""May say `info` about a healthy run: see test_healthy_streams."""

each = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)


def test_every_code_of_the_contract_has_its_rule_and_no_other_has():
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))
    assert set(CONTRACT) - TO_COME <= set(codes) <= set(CONTRACT)


def test_every_file_of_a_rule_is_in_the_list():
    files = {path.stem for path in Path(rules.__file__).parent.glob("un[0-9]*.py")}
    assert files == {rule.__module__.rpartition(".")[2] for rule in RULES}


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("UN104", "perplexity filter"),
        ("UN301", "gradients in FP32"),
        ("UN301", "resync=500"),
        ("UN402", "muP"),
        ("UN405", "raise the momentum"),
        ("UN402", "gradients in FP32"),
    ],
)
def test_what_the_manuals_advise_is_told_where_they_mean_it(code, advice):
    (rule,) = [one for one in RULES if one.code == code]
    assert advice in " ".join(text for texts in rule.remedies.values() for text in texts)


@each
def test_names_are_those_of_the_contract_and_of_the_file(rule):
    assert (rule.slug, rule.severity) == CONTRACT[rule.code]
    assert rule.__module__.rpartition(".")[2] == f"{rule.code}_{rule.slug}".lower().replace("-", "_")
    assert rule.__name__ == rule.slug.title().replace("-", "")


@each
def test_a_rule_can_explain_itself(rule):
    assert rule.__doc__
    assert rule.title() == rule.__doc__.strip()
    assert "\n" not in rule.title()
    assert rule.meaning.strip()
    assert rule.needs.strip()
    assert rule.source.strip()
    assert rule.causes
    assert set(rule.causes) == set(rule.remedies)
    assert all(rule.causes.values())
    assert all(all(steps) and not isinstance(steps, str) for steps in rule.remedies.values())
    assert all(rule.remedies.values())
    assert set(rule.explains) <= set(CONTRACT) - {rule.code}
    assert rule.cleared_after > 0


def watched(rule_class, records):
    """The rule after these records, and its finding, asked for after each as a live run does."""
    run_state, rule = RunState(), rule_class()
    finding = rule.finding(run_state)
    for record in records:
        run_state.see(record)
        rule.see(record, run_state)
        assert isinstance(rule.suspicious, bool)
        finding = rule.finding(run_state)
    return rule, finding


@each
def test_before_anything_was_seen_it_says_what_is_missing(rule):
    made, finding = watched(rule, [])
    assert (made.checks, finding) == (0, None)
    assert Diagnosis().checks()[rule.code] == f"not-yet-possible: needs {rule.needs}"
    assert Diagnosis([rule.code]).checks()[rule.code] == "off"


TOPICS = ("settings", "model", "optimizer", "loader", "initial", "parameters")
NOTES = ("missing", "unheard", "returned", "directions-lost", "directions-back", "decisions-differ", "", "new in 2.0")
AUDITED = ("reduced_W", "used_W", "weights_W", "state_W", "buffers_W", "start_W")
"""Written down only where workers are known to differ."""

WHOLE = ("Ints", "Twins", "tuple[int | None, ...]")
GROUPS = 2


def unknown(kind, number, world, nothing=None, **values):
    """A record of which nothing is known that may be unknown."""
    usual = {"attempt": 1, "step": number, "time": float(number), "kind": kind, "topic": "model", "text": "", "id": ""}
    usual |= {"action": "", "reason": "", "rank": 0, "loader": 0, "epoch": 0, "compared": 0, "steps": 0, "heard": True}
    usual |= {"validation": math.nan if nothing is None else nothing}
    usual |= {"lost": 0, "differing": 0, "format": 1, "run": "", "script": "", "unisono": "", "seconds": nothing}
    content = {}
    for field in fields(RECORD_TYPES[kind]):
        name, shapes = field.name, field.name.rpartition("_")[2]
        if name in values:
            content[name] = values[name]
        elif shapes in ("W", "G"):
            content[name] = (nothing,) * (world if shapes == "W" else GROUPS)
        elif shapes in ("WW", "GW"):
            content[name] = ((nothing,) * world,) * (world if shapes == "WW" else GROUPS)
        elif field.default is None:
            content[name] = nothing
        elif field.default is MISSING and field.default_factory is MISSING:
            content[name] = usual[name]
    return RECORD_TYPES[kind](**content)


def known_nothing(world, nothing=None, steps=40):
    """A run that has every kind of record, all of them without a number that could be missing."""
    yield attempt(world)
    for topic in TOPICS:
        yield facts(topic, same={}, **({name.replace(" ", "_"): (None,) * world for name in SHARDED}))
    for number in range(steps):
        yield unknown("step", number, world, nothing, heard=number % 3 > 0, **dict.fromkeys(AUDITED, ()))
        for kind in ("coverage", "replicas", "streams", "batch", "decision", "validation"):
            yield unknown(kind, number, world, nothing)
        yield note(NOTES[number % len(NOTES)], at=number)
    yield unknown("end", steps, world)


@each
@pytest.mark.parametrize("world", [1, 2, 5])
def test_where_nothing_is_known_nothing_is_held_against_the_run(rule, world):
    _, finding = watched(rule, known_nothing(world))
    # That somebody is missing, or that unisono hears less, is said in so many words.
    assert finding is None or rule.code in ("UN001", "UN002", "UN502", "UN602"), finding


@each
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 0.0, 1e308, -1e308], ids=repr)
def test_no_number_makes_it_fail(rule, number):
    _, finding = watched(rule, known_nothing(3, number))
    check(rule, finding, range(3))


@each
def test_a_worker_alone_is_compared_with_nobody(rule):
    run = streams.Run(workers=1, steps=300)
    _, finding = watched(rule, [streams.attempt(1), *run.records()])
    assert finding is None or (finding.severity, rule.code in REMARKS) == ("info", True), finding


@cache
def healthy_records():
    return [streams.attempt(4), *streams.Run(workers=4, steps=1200, seed=3).records()]


@each
def test_a_healthy_run_is_quiet(rule):
    _, finding = watched(rule, healthy_records())
    assert finding is None or (finding.severity, rule.code in REMARKS) == ("info", True), finding


def odd_value(draw, kind, name, world):
    """Something that the field could hold, drawn."""
    [form] = [field.type for field in fields(RECORD_TYPES[kind]) if field.name == name]
    if form.startswith("tuple[bool"):
        return tuple(draw.random() < 0.95 for _ in range(world))
    if form in WHOLE and name != "samples_W":
        twin = draw.randrange(world)
        return tuple(worker if draw.random() < 0.7 else twin for worker in range(world))
    low, high = draw.choice([(0, 1), (9, 11), (1, 10**6)])
    return tuple(draw.randint(low, high) if form in WHOLE else draw.uniform(low, high) for _ in range(world))


def odd_run(world, steps, seed):
    """All records full of drawn values; the launcher's numbers run backwards and do not begin at zero."""
    draw = random.Random(seed)
    numbers = tuple(range(world + 6, 6, -1))
    yield attempt(world, ranks=numbers)
    for topic in TOPICS:
        differing = {name: tuple(str(draw.randrange(3)) for _ in range(world)) for name in (*SHARDED, "class", "torch")}
        yield facts(topic, same={"not optimised": "a.b"}, **differing)
    for number in range(steps):
        named = [field.name for field in fields(RECORD_TYPES["step"]) if field.name.endswith("_W")]
        chosen = {name: odd_value(draw, "step", name, world) for name in named if draw.random() < 0.6}
        common = {"loss_mean": draw.random(), "grad_norm": draw.uniform(0, 100), "lr": 0.1, "cos_mean": draw.random()}
        common |= {"audits": (*ALL, "buffers"), "parts": 1, "compared": world, "indexed": world, "heard": True}
        common |= {"kept_workers": draw.randrange(world), "target_rows": 4, "cos_expected": 0.5, "loss_std": 0.1}
        yield (
            unknown("step", number, world, **common)
            if number % 5 == 0
            else RECORD_TYPES["step"](1, number, float(number), **chosen, **common)
        )
        if number % 7 == 0:
            yield note(NOTES[number // 7 % len(NOTES)], *draw.sample(numbers, 2), at=number)
            same = {"torch in forward": (0,) * world}
            yield unknown("streams", number, world, consumed=tuple(same), same=same)
            yield unknown("decision", number, world, action="skip", reason="a spike", id=f"1-{number}-1")
            yield unknown("validation", number, world, validation=draw.random())
            drawn = {name: odd_value(draw, "coverage", name, world) for name in ("drawn_W", "distinct_W", "repeated_W")}
            yield unknown("coverage", number, world, dataset=320, distinct=80.0, complete=True, **drawn)


def check(rule, finding, ranks):
    """What holds for a finding of any rule about any run."""
    if finding is None:
        return
    assert (finding.code, finding.slug, finding.title) == (rule.code, rule.slug, rule.title())
    assert SEVERITIES.index(finding.severity) <= SEVERITIES.index(CONTRACT[rule.code][1])
    assert list(finding.ranks) == sorted(set(finding.ranks))
    assert set(finding.ranks) <= set(ranks)
    assert finding.first_step <= finding.last_step
    assert finding.state in ("open", "resolved")
    assert finding.why
    confidence = [cause.confidence for cause in finding.causes]
    assert confidence == sorted(confidence, reverse=True)
    assert {cause.slug for cause in finding.causes} <= set(rule.causes)
    assert all(0 < sure <= 1 for sure in confidence)
    assert bool(finding.remedies) == bool(finding.causes)
    assert finding.causes or finding.severity == "info"
    json.dumps(finding.as_dict())


@cache
def odd_records(world, steps):
    return list(odd_run(world, steps, seed=world))


@each
@pytest.mark.parametrize(("world", "steps"), [(4, 200), (2048, 12)])
def test_findings_about_odd_runs_are_in_order_however_many_workers_there_are(rule, world, steps):
    records = odd_records(world, steps)
    ranks = {worker.rank for worker in records[0].workers}
    check(rule, watched(rule, records)[1], ranks)


def test_the_odd_run_is_odd():
    """Otherwise the test above would say little."""
    found = {rule.code for rule in RULES if watched(rule, odd_records(4, 200))[1] is not None}
    assert len(found) >= 12, found


def test_the_odd_records_could_stand_in_a_file():
    for record in odd_records(4, 200):
        assert from_line(to_line(from_line(to_line(record)))) == from_line(to_line(record))
