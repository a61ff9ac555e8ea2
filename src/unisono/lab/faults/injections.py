"""What can be made to go wrong in a training job: on one worker or on all, at one step or from a step on.

An injection changes what the job computes and knows nothing of who listens. B = samples of a batch, D = numbers in a
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

EASY_SHARE = 0.5


@dataclass
class Injection:
    """Nothing goes wrong."""

    victim: int = 1
    starts_at: int = 0
    fired: int = field(default=0, init=False)
    """How often it has really happened."""

    gain: float = field(default=1.0, init=False)
    slowness: float = field(default=1.0, init=False)

    def inputs_of(self, step: int, workers: int) -> Sequence[int]:
        """The workers whose batch is changed at this step."""
        return ()

    def gradients_of(self, step: int, workers: int) -> Sequence[int]:
        return ()

    def slow_at(self, step: int, workers: int) -> Sequence[int]:
        return ()

    def rate_factor(self, step: int) -> float:
        return 1.0

    def batch(self, inputs_B: Tensor, targets_B: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def gradient(self, gradient_D: Tensor, generator: Generator) -> Tensor:
        raise NotImplementedError


@dataclass
class OnGradient(Injection):
    def gradients_of(self, step: int, workers: int) -> Sequence[int]:
        return (self.victim,) if step >= self.starts_at else ()


@dataclass
class OnInputs(Injection):
    def inputs_of(self, step: int, workers: int) -> Sequence[int]:
        return (self.victim,) if step >= self.starts_at else ()


@dataclass
class ScaledGradient(OnGradient):
    factor: float = 2.0

    def gradient(self, gradient_D: Tensor, generator: Generator) -> Tensor:
        self.fired += 1
        return self.factor * gradient_D


@dataclass
class NoisyGradient(OnGradient):
    """Noise as long as the gradient itself."""

    share: float = 1.0

    def gradient(self, gradient_D: Tensor, generator: Generator) -> Tensor:
        self.fired += 1
        noise_D = torch.randn(gradient_D.shape, generator=generator)
        length = float(gradient_D.norm() / noise_D.norm())
        return gradient_D + self.share * length * noise_D


@dataclass
class FlippedBit(OnGradient):
    """One bit of one number of the gradient is the wrong way round, at one step."""

    bit: int = 30

    def gradients_of(self, step: int, workers: int) -> Sequence[int]:
        return (self.victim,) if step == self.starts_at else ()

    def gradient(self, gradient_D: Tensor, generator: Generator) -> Tensor:
        self.fired += 1
        place = int(torch.randint(len(gradient_D), (), generator=generator))
        bits_D = gradient_D.view(torch.int32).clone()
        bits_D[place] ^= -(2**31) if self.bit == 31 else 1 << self.bit
        return bits_D.view(torch.float32)


@dataclass
class WrongLabels(OnInputs):
    share: float = 0.5

    def batch(self, inputs_B: Tensor, targets_B: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        self.fired += 1
        wrong_B = torch.rand(targets_B.shape, generator=generator) < self.share
        kinds = int(targets_B.max()) + 1
        others_B = (targets_B + torch.randint(1, max(2, kinds), targets_B.shape, generator=generator)) % kinds
        return inputs_B, torch.where(wrong_B, others_B, targets_B)


@dataclass
class ScaledInputs(OnInputs):
    """Numbers that were not normalised; words that are shifted where inputs are no numbers."""

    factor: float = 3.0

    def batch(self, inputs_B: Tensor, targets_B: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        self.fired += 1
        if inputs_B.is_floating_point():
            return self.factor * inputs_B, targets_B
        return (inputs_B + 1) % (int(inputs_B.max()) + 1), targets_B


@dataclass
class EasyShard(OnInputs):
    """Half of the samples are padding."""

    def batch(self, inputs_B: Tensor, targets_B: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        self.fired += 1
        easy = int(EASY_SHARE * len(inputs_B))
        inputs_B[:easy], targets_B[:easy] = 0, 0
        return inputs_B, targets_B


@dataclass
class ToxicBatchInjection(OnInputs):
    """One batch of garbage: huge numbers, or targets that were never seen with these inputs."""

    def inputs_of(self, step: int, workers: int) -> Sequence[int]:
        return (self.victim,) if step == self.starts_at else ()

    def batch(self, inputs_B: Tensor, targets_B: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        self.fired += 1
        if inputs_B.is_floating_point():
            return 30 * inputs_B, targets_B.flip(0)
        return torch.zeros_like(inputs_B), torch.full_like(targets_B, int(targets_B.max()))


@dataclass
class HighRate(Injection):
    """The learning rate of all workers is too high from a step on."""

    factor: float = 300.0

    def rate_factor(self, step: int) -> float:
        self.fired += step >= self.starts_at
        return self.factor if step >= self.starts_at else 1.0


@dataclass
class ContaminatedMomentum(Injection):
    """For one step all gradients are a thousand times too large; the momentum remembers."""

    factor: float = 1000.0

    def gradients_of(self, step: int, workers: int) -> Sequence[int]:
        return range(workers) if step == self.starts_at else ()

    def gradient(self, gradient_D: Tensor, generator: Generator) -> Tensor:
        self.fired += 1
        return self.factor * gradient_D


@dataclass
class PoorInitialisation(Injection):
    """Initial weights so small that nothing gets through."""

    scale: float = 1e-4

    def __post_init__(self) -> None:
        self.gain = self.scale
        self.fired = 1


@dataclass
class AsBuilt(Injection):
    """The setting itself is the fault."""

    def __post_init__(self) -> None:
        self.fired = 1


@dataclass
class Underflow(Injection):
    """Gradients in float16 with a loss scale that is too small: what is below the smallest number is gone."""

    scale: float = 1e-9

    def gradients_of(self, step: int, workers: int) -> Sequence[int]:
        return range(workers) if step >= self.starts_at else ()

    def gradient(self, gradient_D: Tensor, generator: Generator) -> Tensor:
        self.fired += 1
        return (self.scale * gradient_D).half().float() / self.scale


@dataclass
class Throttled(Injection):
    """One worker's clock is lowered."""

    factor: float = 1.5

    def __post_init__(self) -> None:
        self.slowness = self.factor

    def slow_at(self, step: int, workers: int) -> Sequence[int]:
        self.fired += step >= self.starts_at
        return (self.victim,) if step >= self.starts_at else ()


INJECTIONS: dict[str, Callable[[int, int], Injection]] = {
    "gradient-x1.1": lambda victim, step: ScaledGradient(victim, step, 1.1),
    "gradient-x1.3": lambda victim, step: ScaledGradient(victim, step, 1.3),
    "gradient-x2": lambda victim, step: ScaledGradient(victim, step, 2.0),
    "gradient-x10": lambda victim, step: ScaledGradient(victim, step, 10.0),
    "sign-flip": lambda victim, step: ScaledGradient(victim, step, -1.0),
    "zero-gradient": lambda victim, step: ScaledGradient(victim, step, 0.0),
    "gradient-noise": lambda victim, step: NoisyGradient(victim, step),
    "bit-30": lambda victim, step: FlippedBit(victim, step, 30),
    "bit-10": lambda victim, step: FlippedBit(victim, step, 10),
    "wrong-labels-25": lambda victim, step: WrongLabels(victim, step, 0.25),
    "wrong-labels-50": lambda victim, step: WrongLabels(victim, step, 0.5),
    "wrong-labels-100": lambda victim, step: WrongLabels(victim, step, 1.0),
    "scaled-inputs": lambda victim, step: ScaledInputs(victim, step),
    "easy-shard": lambda victim, step: EasyShard(victim, step),
    "toxic-batch": lambda victim, step: ToxicBatchInjection(victim, step),
    "learning-rate-too-high": lambda victim, step: HighRate(victim, step),
    "oscillation": lambda victim, step: HighRate(victim, step, 30.0),
    "momentum-contaminated": lambda victim, step: ContaminatedMomentum(victim, step),
    "poor-initialisation": lambda victim, step: PoorInitialisation(victim, step),
    "deep-post-ln": lambda victim, step: AsBuilt(victim, step),
    "underflow": lambda victim, step: Underflow(victim, step),
    "throttled": lambda victim, step: Throttled(victim, step),
}
"""By the name of the fault: (victim, first step) -> injection."""
