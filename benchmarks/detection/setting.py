"""How a virtual job trains, and the healthy ways of training that look suspicious."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from unisono.common.schedule import Schedule, every

EVERY_STEP = every(1)


@dataclass(frozen=True)
class Setting:
    task: str = "clouds"
    workers: int = 4
    batch: int = 16
    steps: int = 2000
    samples: int = 4096
    optimizer: str = "adamw"
    rate: float = 3e-3
    warm_up: int = 0
    drop_at: int | None = None
    """The learning rate is divided by ten from this step on."""

    decay: bool = False
    """The learning rate falls to nothing along half a cosine."""

    label_noise: float = 0.0
    dropout: float = 0.0
    accumulate: int = 1
    heavy_tails: bool = False
    """One sample in a hundred is ten times as large as the others."""

    jump_at: int | None = None
    """From this step on, all workers read harder data."""

    skip_every: int = 0
    """The loss scaler finds an overflow, on all workers, and skips the step."""

    half: bool = False
    """Gradients in bfloat16."""

    resume_at: int | None = None
    """The job is stopped here and goes on as a new attempt, with new random numbers."""

    clustered: int = 0
    """Neighbouring samples are alike: each worker reads stretches of so many samples of one class."""

    gain: float = 1.0
    """Factor for the initial weights."""

    schedule: Schedule = EVERY_STEP
    """Virtual workers have no step time: a reading costs what it is taken to cost until it is measured."""

    def rate_at(self, step: int) -> float:
        rate = self.rate * min(1.0, (step + 1) / (self.warm_up + 1))
        if self.drop_at is not None and step >= self.drop_at:
            rate /= 10
        return rate * (0.5 + 0.5 * math.cos(math.pi * step / self.steps)) if self.decay else rate


USUAL = {
    "clouds": Setting(label_noise=0.1),
    "clouds, batch 4": Setting(label_noise=0.15, batch=4),
    "images": Setting("images", optimizer="sgd", rate=0.05, samples=3000, label_noise=0.1),
    "texts": Setting("texts", batch=4, samples=2048),
}
"""What faults are tried on."""

OF_A_FAULT: dict[str, dict[str, Setting]] = {
    "oscillation": {
        "clouds, one large batch": Setting(batch=256, samples=2048, optimizer="gradient descent", rate=0.3)
    },
    "deep-post-ln": {"texts, twelve blocks": Setting("deep texts", batch=8, samples=2048, rate=1e-2)},
    "poor-initialisation": {"images": USUAL["images"]},
    "toxic-batch": {name: USUAL[name] for name in ("clouds", "clouds, batch 4", "images")},
}
"""Faults that need a setting of their own."""


def healthy(steps: int) -> dict[str, Setting]:
    """Ways of training that are all right, whatever they look like."""
    clouds, images, texts = (
        replace(USUAL[name], steps=steps, label_noise=0.0) for name in ("clouds", "images", "texts")
    )
    return {
        "warm-up and decay": replace(texts, warm_up=steps // 20, decay=True),
        "learning rate drops": replace(images, drop_at=steps // 2),
        "short last batches": replace(clouds, samples=1000),
        "accumulation": replace(clouds, accumulate=4, batch=4),
        "dropout": replace(clouds, dropout=0.3, samples=8192),
        "loss scaler skips": replace(images, skip_every=151),
        "bfloat16": replace(texts, half=True),
        "heavy tails": replace(clouds, heavy_tails=True),
        "wrong labels everywhere": replace(clouds, label_noise=0.15, batch=4),
        "curriculum jump": replace(clouds, jump_at=steps // 2),
        "resume": replace(images, resume_at=steps // 2),
        "large batches": replace(clouds, batch=128, samples=8192),
        "learnt by heart": replace(clouds, samples=512, batch=8),
        "stretches of one class": replace(clouds, clustered=64, batch=8),
        "small steps": replace(texts, optimizer="sgd", rate=0.01),
    }
