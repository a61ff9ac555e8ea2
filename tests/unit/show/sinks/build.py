"""Readings, findings and runs to hand to sinks."""

import sys

from unisono.records import StepRecord
from unisono.records.finding import Cause, Finding
from unisono.show.sinks.names import reading_of
from unisono.show.sinks.sink import SinkRun


def finding(code="UN101", severity="critical", **changes):
    content = {
        "code": code,
        "slug": "duplicated-data",
        "title": "Several workers load the same data",
        "severity": severity,
        "state": "open",
        "first_step": 3,
        "last_step": 9,
        "ranks": (1, 3),
        "where": ("host cuda:1", "host cuda:3"),
        "why": "their batches have had equal fingerprints for 12 steps",
        "evidence": {"cosine": 0.998},
        "causes": (Cause("sampler", "the sampler got no rank", 0.9),),
        "remedies": ("pass rank= to the sampler",),
        "pattern": None,
    }
    return Finding(**content | changes)


def record(step=0, **fields):
    """A heard step, a tenth of a second after the one before."""
    numbers = {
        "loss_W": (1.0, 2.0),
        "loss_mean": 1.5,
        "loss_std": 0.5,
        "loss_range": 1.0,
        "norm_W": (3.0, 4.0),
        "grad_norm": 2.5 + step,
        "cos_W": (0.25, None),
        "cos_mean": 0.25,
    }
    return StepRecord(1, step, 1_700_000_000 + step / 10, heard=True, **numbers | fields)


def reading(step=0, **fields):
    return reading_of(record(step, **fields))


def run(directory, name="train", part="", ranks=(0, 1)):
    return SinkRun(name, directory, part, ranks)


def without(package, monkeypatch):
    """As if a package were not installed."""

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(name)

    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
