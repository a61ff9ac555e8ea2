"""Short words for records, and one rule at a time."""

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.records import (
    AttemptRecord,
    CoverageRecord,
    DecisionRecord,
    FactsRecord,
    NoteRecord,
    ReplicasRecord,
    StepRecord,
    StreamsRecord,
    WorkerFacts,
)

ALL = ("reduced", "used", "weights", "state")


def attempt(world=4, number=1, ranks=None):
    workers = tuple(WorkerFacts(rank, f"host{rank}", 100 + rank, f"cuda:{rank}") for rank in ranks or range(world))
    return AttemptRecord(attempt=number, time=0.0, world=world, first_step=0, workers=workers)


def step(number, **fields):
    return StepRecord(attempt=1, step=number, time=float(number), **{"heard": True, "lr": 0.1, **fields})


def audit(number, part=0, parts=1, **fields):
    return step(number, **{"audits": ALL, "part": part, "parts": parts, **fields})


def facts(topic, at=0, same=None, **differ):
    """Keyword `sampler_rank=` stands for the fact `sampler rank`."""
    spaced = {name.replace("_", " "): tuple(values) for name, values in differ.items()}
    return FactsRecord(attempt=1, step=at, time=0.0, topic=topic, same=dict(same or {}), differ=spaced)


SHARDED = {
    "number": "0",
    "pass": "0",
    "batch size": "8",
    "length": "10",
    "dataset": "320",
    "dataset kind": "map",
    "sampler": "DistributedSampler",
    "sampler replicas": "4",
    "sampler seed": "0",
    "sampler epoch": "0",
    "shuffle": "yes",
    "replacement": "no",
    "drop last": "no",
    "workers": "0",
}


def loader(at=0, leave_out=(), world=4, ranks=None, same=None, **differ):
    """A DistributedSampler as it should be, but for what is given."""
    spaced = {name.replace("_", " ") for name in differ}
    agreed = {**SHARDED, "sampler replicas": str(world), **(same or {})}
    agreed = {name: value for name, value in agreed.items() if name not in spaced and name not in leave_out}
    if "sampler rank" not in leave_out:
        differ.setdefault("sampler_rank", tuple(str(rank) for rank in ranks or range(world)))
    return facts("loader", at, agreed, **differ)


def coverage(at=10, **fields):
    return CoverageRecord(attempt=1, step=at, time=0.0, **{"loader": 0, "epoch": 1, "complete": True, **fields})


def replicas(at=2, **fields):
    return ReplicasRecord(attempt=1, step=at, time=0.0, **{"compared": 10, **fields})


def streams(at, *consumed, **same):
    """Keyword `torch_in_forward=` stands for the stream `torch in forward`."""
    shared = {name.replace("_", " "): twins for name, twins in same.items()}
    return StreamsRecord(attempt=1, step=at, time=0.0, consumed=(*consumed, *shared), same=shared)


def note(about, *ranks, at=5, text="a note"):
    return NoteRecord(attempt=1, step=at, time=0.0, text=text, about=about, ranks=ranks)


def decision(action="skip", *ranks, at=5, reason="rank 2's loss is not finite", **fields):
    return DecisionRecord(1, at, 0.0, f"1-{at}-1", action, reason, ranks=ranks, **fields)


def watch(rule_class, *records, world=4):
    """One rule that has seen these; an attempt comes first unless it is given."""
    run_state, rule = RunState(), rule_class()
    for record in records if records and records[0].kind == "attempt" else (attempt(world), *records):
        run_state.see(record)
        rule.see(record, run_state)
    return rule, run_state


def judge(rule_class, *records, world=4):
    """What one rule finds."""
    rule, run_state = watch(rule_class, *records, world=world)
    return rule.finding(run_state)


def checks(rule_class, *records):
    """How often one rule could look."""
    return watch(rule_class, *records)[0].checks
