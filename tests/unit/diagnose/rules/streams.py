"""Invented runs, as arrays over T steps and W workers that a test can spoil before they become records."""

from dataclasses import dataclass, field

import numpy as np

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.records import AttemptRecord, StepRecord, WorkerFacts


@dataclass
class Run:
    """What the workers would say; healthy by default: the loss falls, and the cosine from 0.8 to 0.05."""

    workers: int = 4
    steps: int = 1000
    seed: int = 0
    tails: float | None = None
    """Degrees of freedom of Student's t for losses and norms; normal where not given."""

    noise: float = 0.1
    extra: dict = field(default_factory=dict)
    """Fields that all step records share."""

    def __post_init__(self):
        random = np.random.default_rng(self.seed)
        shape, time = (self.steps, self.workers), np.arange(self.steps)
        draw = random.standard_normal if self.tails is None else lambda size: random.standard_t(self.tails, size)
        self.lr = np.full(self.steps, 1e-3)
        self.share = 0.05 + 0.75 * np.exp(-time / 30)
        self.loss = (0.5 + 4 / (1 + time / 50))[:, None] * np.exp(self.noise / 2 * draw(shape))
        self.norm = (0.3 + 1 / (1 + time / 100))[:, None] * np.exp(self.noise * draw(shape))
        self.cos = 1.5 * self.share[:, None] + 0.03 * random.standard_normal(shape)
        self.wobble = 0.02 * random.standard_normal(self.steps)
        self.compute = 0.1 * np.exp(0.05 * random.standard_normal(shape))
        self.samples = np.full(shape, 8)
        self.skipped = np.zeros(self.steps, bool)
        self.finite = np.ones(shape, bool)
        self.mean_norm = None
        self.heard = np.ones(self.steps, bool)
        self.group_norm = None
        """Norms of layer groups, over T steps and G groups."""

    def records(self):
        cos_mean = np.clip(self.share + self.wobble, -1, 1)
        mean_norm = self.mean_norm
        if mean_norm is None:
            rms = np.sqrt((self.norm**2).mean(axis=1))
            mean_norm = rms * np.sqrt(np.clip(cos_mean, 0, 1) * (1 - 1 / self.workers) + 1 / self.workers)
        expected, readings = 0.0, 0
        for step in range(self.steps):
            readings = min(50, readings + 1)
            expected += (cos_mean[step] - expected) / readings
            yield self._record(step, float(cos_mean[step]), float(mean_norm[step]), max(0.0, float(expected)))

    def _record(self, step, cos_mean, grad_norm, expected):
        loss_W, norm_W = self.loss[step], self.norm[step]
        values = {
            "attempt": 1,
            "step": step,
            "time": float(step),
            "heard": True,
            "skipped": bool(self.skipped[step]),
            "finite_W": tuple(self.finite[step].tolist()),
            "loss_W": tuple(loss_W.tolist()),
            "loss_mean": float(loss_W.mean()),
            "loss_std": float(loss_W.std()),
            "norm_W": tuple(norm_W.tolist()),
            "grad_norm": grad_norm,
            "grad_norm_cv": float(norm_W.std() / norm_W.mean()) if norm_W.any() else None,
            "cos_W": tuple(self.cos[step].tolist()),
            "cos_mean": cos_mean,
            "cos_expected": expected,
            "compute_W": tuple(self.compute[step].tolist()),
            "lr": float(self.lr[step]),
            "samples_W": tuple(self.samples[step].tolist()),
            "compared": self.workers,
            "fresh": True,
        }
        if self.group_norm is not None:
            values["norm_G"] = tuple(self.group_norm[step].tolist())
        if not self.heard[step]:
            values |= UNHEARD
        return StepRecord(**(values | self.extra))


UNHEARD = {
    **dict.fromkeys(("norm_W", "norm_G", "cos_W"), ()),
    **dict.fromkeys(("grad_norm", "grad_norm_cv", "cos_mean", "cos_expected")),
    "heard": False,
}


def attempt(workers, number=1, groups=()):
    facts = tuple(WorkerFacts(rank, "host", 1, f"cuda:{rank}") for rank in range(workers))
    return AttemptRecord(number, 0.0, workers, 0, facts, groups=groups)


def find(rule_class, run, *before):
    """The finding of one rule about a run."""
    return judge(rule_class, attempt(run.workers), *before, *run.records())


def judge(rule_class, *records):
    run_state, rule = RunState(), rule_class()
    for record in records:
        run_state.see(record)
        rule.see(record, run_state)
    return rule.finding(run_state)


def causes(finding):
    return [cause.slug for cause in finding.causes]
