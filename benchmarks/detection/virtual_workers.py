"""Many virtual jobs in lock-step: real models, gradients and updates, without processes.

R = runs, W = workers of a run, V = R x W virtual workers, B = samples of a batch, D = numbers in a gradient,
K = sketch length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from benchmarks.detection.setting import Setting
from benchmarks.detection.tasks import TASKS
from benchmarks.detection.virtual_signals import Readings
from torch import Generator, Tensor

from unisono.lab.faults.injections import Injection
from unisono.listen.messages import AllRanksStep

HARDER = 1.5


class Fleet:
    """One setting, `len(injections)` runs with seeds of their own; each run may have something injected."""

    def __init__(self, setting: Setting, injections: Sequence[Injection], seed: int) -> None:
        self.setting, self.injections = setting, list(injections)
        self.runs, self.workers = len(injections), setting.workers
        self._task = TASKS[setting.task]
        self._generator = Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self._data = Data(setting, self.runs, self._generator)
        runs = [self._task.weights(self._generator) for _ in range(self.runs)]
        gains = [setting.gain * injection.gain for injection in self.injections]
        self.weights = {
            name: torch.stack([gain * weights[name] for gain, weights in zip(gains, runs, strict=True)])
            for name in runs[0]
        }
        self._optimizer = self._made_optimizer()
        self._readings = Readings(list(self.weights), [one[0].numel() for one in self.weights.values()], setting)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self._readings.group_sizes)

    def _made_optimizer(self) -> torch.optim.Optimizer:
        weights, rate = list(self.weights.values()), self.setting.rate
        if self.setting.optimizer == "gradient descent":
            return torch.optim.SGD(weights, rate)
        if self.setting.optimizer == "sgd":
            return torch.optim.SGD(weights, rate, momentum=0.9)
        return torch.optim.AdamW(weights, rate)

    def step(self, step: int, window_R: Sequence[int | None]) -> list[AllRanksStep]:
        """Trains one step. What the workers of each run said.

        :param window_R: First step of the window of readings the step belongs to; none where nobody listens.
        """
        batches = [self._batch(step) for _ in range(self.setting.accumulate)]
        passes = [self._gradients(inputs, targets) for inputs, targets in batches]
        loss_V = torch.stack([losses for losses, _ in passes]).mean(0)
        gradient_VD = torch.stack([gradients for _, gradients in passes]).mean(0)
        if self.setting.half:
            gradient_VD = gradient_VD.bfloat16().float()
        self._inject_gradients(gradient_VD, step)
        skipped = self.setting.skip_every > 0 and step % self.setting.skip_every == self.setting.skip_every - 1
        if skipped:
            gradient_VD[:, 0] = torch.inf
        mean_RD = gradient_VD.unflatten(0, (self.runs, self.workers)).mean(1)
        rate, factor_R = self.setting.rate_at(step), [injection.rate_factor(step) for injection in self.injections]
        if not skipped:
            self._update(mean_RD, rate, factor_R)
        samples = batches[0][1].shape[1] * self.setting.accumulate
        times_V, rate_R = self._times(step), [rate * factor for factor in factor_R]
        return self._readings.take(step, loss_V, gradient_VD, mean_RD, times_V, samples, skipped, window_R, rate_R)

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self._data.batch(step)
        for run, injection in enumerate(self.injections):
            for worker in injection.inputs_of(step, self.workers):
                place = run * self.workers + worker
                inputs[place], targets[place] = injection.batch(inputs[place], targets[place], self._generator)
        return inputs, targets

    def _gradients(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        own = {
            name: weights.repeat_interleave(self.workers, 0).requires_grad_() for name, weights in self.weights.items()
        }
        loss_V = self._task.loss(own, inputs, targets, self.setting.dropout)
        gradients = torch.autograd.grad(loss_V.sum(), list(own.values()))
        return loss_V.detach(), torch.cat([gradient.flatten(1) for gradient in gradients], 1)

    def _inject_gradients(self, gradient_VD: Tensor, step: int) -> None:
        for run, injection in enumerate(self.injections):
            for worker in injection.gradients_of(step, self.workers):
                place = run * self.workers + worker
                gradient_VD[place] = injection.gradient(gradient_VD[place], self._generator)

    def _update(self, mean_RD: Tensor, rate: float, factors: Sequence[float]) -> None:
        parts = mean_RD.split([one[0].numel() for one in self.weights.values()], 1)
        for weights, part in zip(self.weights.values(), parts, strict=True):
            weights.grad = part.reshape(weights.shape)
        self._optimizer.param_groups[0]["lr"] = rate
        before = [weights.clone() for weights in self.weights.values()] if set(factors) != {1.0} else []
        self._optimizer.step()
        for old, weights in zip(before, self.weights.values(), strict=bool(before)):
            factor_R = torch.tensor(factors).reshape(-1, *[1] * (weights.dim() - 1))
            weights.copy_(torch.where(factor_R == 1, weights, old + factor_R * (weights - old)))

    def _times(self, step: int) -> Tensor:
        """Milliseconds of each worker's own part of the step."""
        times_V = 0.1 * (0.05 * torch.randn(self.runs * self.workers, generator=self._generator)).exp()
        for run, injection in enumerate(self.injections):
            for worker in injection.slow_at(step, self.workers):
                times_V[run * self.workers + worker] *= injection.slowness
        return times_V


class Data:
    """Each run's samples, dealt out to its workers in an order that is drawn anew for every epoch."""

    def __init__(self, setting: Setting, runs: int, generator: Generator) -> None:
        self._setting, self._generator = setting, generator
        drawn = [TASKS[setting.task].data(generator, setting.samples) for _ in range(runs)]
        self._inputs = torch.stack([inputs for inputs, _ in drawn])
        self._targets = torch.stack([targets for _, targets in drawn])
        if setting.label_noise:
            wrong = torch.rand(self._targets.shape, generator=generator) < setting.label_noise
            others = torch.randint(int(self._targets.max()) + 1, self._targets.shape, generator=generator)
            self._targets = torch.where(wrong, others, self._targets)
        if setting.heavy_tails:
            rare = torch.rand(self._targets.shape[:2], generator=generator) < 0.01
            self._inputs = self._inputs * (1 + 9 * rare.float()).reshape(*rare.shape, *[1] * (self._inputs.dim() - 2))
        self._order_RN = torch.zeros(runs, 0, dtype=torch.int64)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of all virtual workers, as copies; the last batch of an epoch may be short."""
        setting = self._setting
        if setting.jump_at == step:
            self._inputs = self._inputs + HARDER * self._inputs.std() * torch.randn(
                self._inputs.shape, generator=self._generator
            )
        wanted = setting.workers * setting.batch
        if self._order_RN.shape[1] < setting.workers:
            self._order_RN = self._shuffled()
        here_RN, self._order_RN = self._order_RN[:, :wanted], self._order_RN[:, wanted:]
        each = here_RN.shape[1] // setting.workers
        here_VB = here_RN[:, : each * setting.workers].reshape(-1, each)
        run_V1 = torch.arange(len(self._inputs)).repeat_interleave(setting.workers)[:, None]
        return self._inputs[run_V1, here_VB].clone(), self._targets[run_V1, here_VB].clone()

    def _shuffled(self) -> Tensor:
        runs, count = self._targets.shape[:2]
        order_RN = torch.rand(runs, count, generator=self._generator).argsort(1)
        if not self._setting.clustered:
            return order_RN
        return self._in_stretches(order_RN)

    def _in_stretches(self, order_RN: Tensor) -> Tensor:
        """Each worker's samples come in stretches of one class."""
        workers, batch, length = self._setting.workers, self._setting.batch, self._setting.clustered
        by_class = self._targets.gather(1, order_RN).argsort(dim=1, stable=True)
        stretches = order_RN.gather(1, by_class)[:, : order_RN.shape[1] // length * length].unflatten(1, (-1, length))
        mixed = stretches[:, torch.randperm(stretches.shape[1], generator=self._generator)].flatten(1)
        whole = mixed.shape[1] // (workers * batch) * workers * batch
        dealt: Tensor = mixed[:, :whole].reshape(len(mixed), workers, -1, batch)
        return dealt.transpose(1, 2).flatten(1)
