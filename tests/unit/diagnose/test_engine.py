"""From records of a whole run to findings: for each fault one that leads, however many symptoms it has."""

import random
import time
from dataclasses import replace

import pytest

from unisono.diagnose.engine import Diagnosis, _covers, diagnose
from unisono.diagnose.rules import RULES
from unisono.diagnose.rules.shared.rule import Case
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.records import from_line, to_line
from unisono.records.finding import Finding
from unit.diagnose.rules.build import ALL, attempt, coverage, facts, loader, note, replicas, step, streams

ONE, NONE_AGREE = (0, 0, 2, 0), (0, 1, 2, 3)


def healthy(number, parts=5, **fields):
    """Heard and compared, as everything is at first: three times the whole model, then part by part."""
    part = {"part": 0, "parts": 1} if number < 3 else {"part": number % parts, "parts": parts}
    usual = {"finite_W": (True,) * 4, "loss_W": (2.1, 2.0, 1.9, 2.0), "norm_W": (1.0, 1.1, 0.9, 1.0)}
    data = {"compared": 4, "indexed": 4, "fresh": True, "samples_W": (8,) * 4, "target_rows": 4}
    return step(number, **{**usual, **data, "audits": ALL, **part, **fields})


PREFLIGHT = (
    attempt(),
    facts("settings", same={"torch": "2.6", "world": "4"}),
    facts("model", same={"structure": "a", "broadcast buffers": "yes"}),
    facts("optimizer", same={"class": "AdamW", "lr": "0.1", "sharded state": "no"}),
    facts("initial", same={"weights": "a"}),
    loader(),
)


def run(before=20, after=20, first=PREFLIGHT, extra=(), **fault):
    """`before` healthy steps, then steps with `fault`."""
    return [*first, *map(healthy, range(before)), *(healthy(n, **fault) for n in range(before, before + after)), *extra]


def without(topic, *instead):
    return (*(record for record in PREFLIGHT if getattr(record, "topic", "") != topic), *instead)


def in_parts(number, differing, **fields):
    """Differences show where they are looked for."""
    return healthy(number, **(fields if number < 3 or number % 5 in differing else {}))


DRAWN = {"at": 39, "drawn_W": (80,) * 4, "distinct_W": (80.0,) * 4, "distinct": 220.0, "dataset": 320}
MEASURED = {"weights_W": ONE, "distance_W": (0.0, 0.0, 0.1, 0.0)}
APART = {"reduced_W": NONE_AGREE, "used_W": NONE_AGREE, "weights_W": NONE_AGREE, "state_W": NONE_AGREE}
SECOND = {"pass": "1"}

# Each fault with all that it would leave in the records, and what should be said about it.
FAULTS = {
    "duplicated data on all": (
        run(0, first=without("loader", loader(ranks=(0, 0, 0, 0))), same_content_W=(0,) * 4, same_indices_W=(0,) * 4)
        + [coverage(**{**DRAWN, "distinct": 80.0})]
        + [streams(n, torch_in_forward=(0,) * 4) for n in (40, 41)],
        ("UN101", "sampler-rank", (0, 1, 2, 3)),
    ),
    "duplicated data on a pair": (
        run(0, first=without("loader", loader(ranks=(0, 1, 2, 1))), same_content_W=(0, 1, 2, 1)),
        ("UN101", "sampler-rank", (1, 3)),
    ),
    "sampler seed on one": (
        run(40, 0, first=without("loader", loader(sampler_seed="0070")), extra=[coverage(**DRAWN)]),
        ("UN102", "sampler-seeds-differ", (2,)),
    ),
    "set_epoch forgotten by one": (
        [
            *run(20, 0),
            loader(20, same=SECOND, sampler_epoch="1101"),
            coverage(**DRAWN, repeated_W=(False, False, True, False)),
        ],
        ("UN102", "set-epoch-on-some-ranks", (2,)),
    ),
    "set_epoch forgotten by all": (
        [*run(20, 0), loader(20, same=SECOND), coverage(at=39, repeated_W=(True,) * 4)],
        ("UN103", "set-epoch-not-called", ()),
    ),
    "equal dropout": (
        run(3, 0) + [streams(n, torch_in_forward=(0,) * 4) for n in (3, 4)],
        ("UN201", "same-seed-in-forward", (0, 1, 2, 3)),
    ),
    "unequal initialisation": (
        [
            *run(0, first=without("initial", facts("initial", weights="aaba")), weights_W=ONE, buffers_W=ONE),
            replicas(differing=10, **MEASURED),
        ],
        ("UN202", "changed-after-wrapping", (2,)),
    ),
    "drift by one bit": (
        [
            *run(20, 0),
            *(in_parts(n, {1}, weights_W=ONE, weight_spread=1e-09) for n in range(20, 40)),
            replicas(differing=1, weights_W=ONE, distance_W=(0.0, 0.0, 6e-08, 0.0)),
        ],
        ("UN301", "precision-drift", (2,)),
    ),
    "stale weights": (
        [*run(weights_W=ONE, weight_spread=0.001), replicas(differing=10, **MEASURED)],
        ("UN301", "stale-or-missed-update", (2,)),
    ),
    "no_sync leak": (
        [*run(0, backwards_W=(4,) * 4, **{**APART, "reduced_W": ()}), replicas(differing=10, weights_W=NONE_AGREE)],
        ("UN302", "no-sync-leak", ()),
    ),
    "never synchronised": (
        run(backwards_W=(4,) * 4, syncs_W=(0,) * 4, audits=("used", "weights", "state"), **{**APART, "reduced_W": ()}),
        ("UN302", "no-sync-leak", ()),
    ),
    "stripped wrapper": (
        [*run(0, **APART), replicas(differing=10, weights_W=NONE_AGREE)],
        ("UN302", "forward-through-module", ()),
    ),
    "parameter outside forward": (
        [
            *PREFLIGHT,
            *(in_parts(n, {4}, **APART) for n in range(40)),
            replicas(differing=2, parameters=("probe.weight", "probe.bias"), weights_W=NONE_AGREE),
        ],
        ("UN302", "parameter-outside-forward", ()),
    ),
    "clipping on one": (
        [*run(used_W=ONE, weights_W=ONE, state_W=ONE), replicas(differing=10, **MEASURED)],
        ("UN302", "clipping-on-some-ranks", (2,)),
    ),
    "learning rate on one": (
        [*run(lr=None, lr_W=(0.1, 0.1, 0.2, 0.1), settings_W=ONE, weights_W=ONE), replicas(differing=10, **MEASURED)],
        ("UN303", "learning-rate-differs", (2,)),
    ),
    "optimizer state loaded on one": (
        [*run(0, state_W=ONE, weights_W=ONE), replicas(differing=10, **MEASURED)],
        ("UN303", "state-differs", (2,)),
    ),
    "another optimizer on one": (
        run(
            0,
            first=without("optimizer", facts("optimizer", **{"class": "aaba", "numbers": "aaba"})),
            settings_W=ONE,
            state_W=ONE,
            weights_W=ONE,
        ),
        ("UN002", "optimizer-class-differs", (2,)),
    ),
    "buffers not broadcast": (
        run(0, audits=(*ALL, "buffers"), buffers_W=NONE_AGREE),
        ("UN304", "broadcast-buffers-off", ()),
    ),
    "parameter not optimised": (
        [*run(20, 0), facts("parameters", 20, {"not optimised": "down.weight"})],
        ("UN305", "missing-from-optimizer", ()),
    ),
    "NaN on one": (
        [*run(20, 0), healthy(20, finite_W=(True, False, True, True))]
        + [healthy(n, finite_W=(False,) * 4, weights_W=NONE_AGREE, reduced_W=NONE_AGREE) for n in range(21, 40)],
        ("UN404", "bad-sample", (1,)),
    ),
    "skip decided by one": (
        [*run(20, 0), healthy(20, skipped_W=(True, False, False, False), updates_W=(20, 21, 21, 21))]
        + [
            healthy(n, updates_W=(n, n + 1, n + 1, n + 1), weights_W=(0, 1, 1, 1), state_W=(0, 1, 1, 1))
            for n in range(21, 40)
        ],
        ("UN002", "decision-on-one-rank", (0,)),
    ),
    "a worker died": (
        [*run(20, 0), note("missing", 3, at=20), note("unheard", 3, at=21)],
        ("UN502", "process-died", (3,)),
    ),
}


@pytest.mark.parametrize(("records", "expected"), FAULTS.values(), ids=FAULTS)
def test_one_fault_one_finding(records, expected):
    grave = [found for found in diagnose(records).findings() if found.at_least("warning")]
    assert [(found.code, found.causes[0].slug, found.ranks) for found in grave] == [expected]
    assert grave[0].state == "open"


@pytest.mark.parametrize(("records", "expected"), FAULTS.values(), ids=FAULTS)
def test_the_same_from_a_file(records, expected):
    replayed = diagnose([from_line(to_line(record)) for record in records])
    assert replayed.findings() == diagnose(records).findings()
    assert replayed.checks() == diagnose(records).checks()
    assert replayed.last_healthy_step() == diagnose(records).last_healthy_step()


@pytest.mark.parametrize(("records", "expected"), FAULTS.values(), ids=FAULTS)
def test_with_two_workers_nobody_is_guessed(records, expected):
    """Whoever is named without a majority is named by the evidence itself."""
    halved = diagnose([_first_two(record) for record in records if record.kind != "note"])
    by_evidence = {"UN101", "UN106", "UN201", "UN404"}
    named = {found.code: found.ranks for found in halved.findings() if found.ranks}
    stood_still = {"UN102"} if expected[1] == "set-epoch-on-some-ranks" else set()
    assert set(named) <= by_evidence | stood_still


def _first_two(record):
    """Ranks 1 and 2, which are those that differ."""
    changes = {}
    for name in record.__dataclass_fields__:
        value = getattr(record, name)
        if name.endswith("_W") and value:
            changes[name] = (value[1], value[2])
    if record.kind == "attempt":
        return attempt(2)
    if record.kind == "facts":
        changes["differ"] = {name: values[1:3] for name, values in record.differ.items()}
        changes["same"] = {name: "2" if name == "sampler replicas" else value for name, value in record.same.items()}
    return replace(record, **changes)


def test_a_healthy_run_passes_its_checks():
    found = diagnose(run())
    assert found.findings() == []
    assert found.last_healthy_step() == 39
    exact = ["UN001", "UN002", "UN101", "UN106", "UN202", "UN301", "UN302", "UN303", "UN404", "UN502"]
    assert {found.checks()[code] for code in exact} == {"passed"}
    assert found.checks()["UN103"].startswith("not-yet-possible: needs ")


def test_symptoms_are_attached():
    records, _ = FAULTS["learning rate on one"]
    (found,) = diagnose(records).findings()
    assert found.evidence["symptoms"] == "UN301 replicas-diverged since step 20"


def test_last_healthy_step():
    records, _ = FAULTS["learning rate on one"]
    assert diagnose(records).last_healthy_step() == 19
    assert diagnose(FAULTS["unequal initialisation"][0]).last_healthy_step() is None


def test_damage_keeps_a_fault_open_that_is_gone():
    gone = [*run(5, 5, lr=None, lr_W=(0.1, 0.1, 0.2, 0.1), weights_W=ONE)]
    damaged = [*gone, *(healthy(n, weights_W=ONE) for n in range(10, 20))]
    (found,) = diagnose(damaged).findings()
    assert (found.code, found.state, found.last_step) == ("UN303", "open", 19)
    repaired = [*damaged, *map(healthy, range(20, 40))]
    (found,) = diagnose(repaired).findings()
    assert (found.code, found.state, found.last_step) == ("UN303", "resolved", 9)


def test_what_was_there_before_is_not_explained():
    early = [*PREFLIGHT, *map(healthy, range(5)), *(healthy(n, weights_W=ONE) for n in range(5, 20))]
    later = [healthy(n, weights_W=ONE, finite_W=(True, False, True, True)) for n in range(20, 30)]
    assert {found.code for found in diagnose([*early, *later]).findings()} == {"UN301", "UN404"}


def test_who_is_left_out_is_explained_by_what_is_wrong_with_it_whichever_was_noticed_first():
    case = Case("critical", first_step=40, last_step=90, last_good=39)
    cause = finding(code="UN501", ranks=(3,), first_step=40)
    assert _covers(cause, finding(code="UN601", ranks=(3,), first_step=30), case)
    assert not _covers(cause, finding(code="UN601", ranks=(2,), first_step=30), case)
    assert not _covers(cause, finding(code="UN105", ranks=(3,), first_step=30), case)


def finding(**fields):
    known = {"slug": "x", "title": "x", "severity": "warning", "state": "open", "last_step": 90, "where": (), "why": ""}
    rest = {"evidence": {}, "causes": (), "remedies": (), "pattern": None}
    return Finding(**known, **rest, **fields)


def test_a_weaker_finding_does_not_explain_a_graver_one():
    first = without("settings", facts("settings", torch=("2.6", "2.6", "2.7", "2.6")))
    found = diagnose(run(first=first, weights_W=ONE)).findings()
    assert [(one.code, one.severity) for one in found] == [("UN301", "critical"), ("UN002", "warning")]


def test_two_that_explain_each_other_do_not_both_disappear(monkeypatch):
    monkeypatch.setitem(diagnose.__globals__["_EXPLAINS"], "UN301", ("UN303",))
    records, _ = FAULTS["learning rate on one"]
    assert len(diagnose(records).findings()) == 1


def test_ignored_codes_are_muted_but_counted():
    records, _ = FAULTS["set_epoch forgotten by all"]
    found = diagnose(records, ignore=["UN103"])
    assert found.findings() == []
    assert found.muted() == {"UN103": 20}
    assert found.checks()["UN103"] == "off"


def test_news_are_told_once_and_again_when_graver():
    diagnosis = Diagnosis()
    told = []
    first = without("settings", facts("settings", torch=("2.6", "2.6", "2.7", "2.6")))
    for record in [
        *first,
        *map(healthy, range(3)),
        healthy(3, updates_W=(3, 3, 2, 3)),
        healthy(4, updates_W=(4, 4, 3, 4)),
    ]:
        diagnosis.see(record)
        told += [(found.code, found.severity) for found in diagnosis.news()]
    assert told == [("UN002", "warning"), ("UN002", "critical")]


def turbulent():
    """Calm stretches between unusable steps, jumps of the learning rate, other workers and restarts."""
    draw = random.Random(0)
    for number in range(600):
        world = 3 if 400 <= number < 500 else 4
        loss_W = tuple(draw.gauss(2.0, 0.1) * (1.5 if worker == 1 else 1.0) for worker in range(world))
        odd = {"skipped": number % 41 == 0, "lr": 1.0 if 200 <= number < 260 else 0.1, "samples_W": (8,) * world}
        odd["finite_W"] = (number % 37 > 0,) * world
        if number == 300:
            yield attempt(number=2)
        common = {"loss_mean": sum(loss_W) / world, "loss_std": 0.1, "norm_W": loss_W, "grad_norm": loss_W[0]}
        record = healthy(number, **{"loss_W": loss_W, "compute_W": loss_W, "compared": world, **common, **odd})
        yield replace(record, attempt=1 + (number >= 300))


def test_in_calm_times_every_rule_sees_what_it_would_see_by_itself():
    records = [*PREFLIGHT, *turbulent()]
    diagnosis, run_state, rules = diagnose(records), RunState(), [rule() for rule in RULES]
    for record in records:
        run_state.see(record)
        for rule in rules:
            rule.see(record, run_state)
    assert {rule.code for rule in rules if rule.case is not None} >= {"UN105", "UN404", "UN503"}
    for own, alone in zip(diagnosis._rules, rules, strict=True):
        assert (own.checks, own.case) == (alone.checks, alone.case)
        assert own.finding(run_state) == alone.finding(run_state)


def test_local_sgd_by_hand_ends_without_a_finding_above_info():
    local = {"syncs_W": (0,) * 4, "used_W": NONE_AGREE, "state_W": NONE_AGREE, "parts": 1, "part": 0}
    records = [*PREFLIGHT, *(healthy(n, **local, weights_W=() if n % 8 == 7 else NONE_AGREE) for n in range(40))]
    assert {found.severity for found in diagnose(records).findings()} == {"info"}


@pytest.mark.slow
def test_a_long_run_is_read_in_seconds():
    draw = random.Random(0)
    around = [tuple(draw.gauss(2.0, 0.1) for _ in range(4)) for _ in range(1000)]
    records = [healthy(n, loss_W=draw.choice(around), norm_W=draw.choice(around)) for n in range(100_000)]
    began = time.process_time()
    assert diagnose([*PREFLIGHT, *records]).findings() == []
    assert time.process_time() - began < 20
