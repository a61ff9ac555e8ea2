"""One training of the table: micro-gradients, their weights, and an update that a filter may leave out.

P = parameters, W = workers (micro-batches of a step), B = images of a micro-batch, N = training images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.act.weightings.adaptive import AdaptiveFilter
from unisono.act.weightings.agreement import AgreementFilter
from unisono.act.weightings.mean import Mean
from unisono.act.weightings.norm_aware import NormAware
from unisono.act.weightings.preconditioned import Preconditioned
from unisono.act.weightings.weighting import Weighting, damping_of
from unisono.common.whole_file import replacing
from unisono.lab.experiments.gaf.images import ImageData, LabelledImages, draw_epoch, shown, wrong_labels
from unisono.lab.experiments.gaf.plan import RunPlan
from unisono.lab.experiments.gaf.recorded import OnHost, Recorded
from unisono.lab.experiments.gaf.resnet import resnet18

METHODS: dict[str, Callable[[float], Weighting]] = {
    "averaging-128": lambda tau: Mean(),
    "averaging": lambda tau: Mean(),
    "published": lambda tau: AgreementFilter(tau, order="sequential"),
    "halving": lambda tau: AgreementFilter(tau, order="sequential", fusion="halving"),
    "order-independent": AgreementFilter,
    "adaptive": lambda tau: AdaptiveFilter(),
    "preconditioned": lambda tau: Preconditioned(AgreementFilter(tau)),
    "norm-aware": lambda tau: NormAware(AgreementFilter(tau)),
}

MOMENTUM, WEIGHT_DECAY = 0.9, 0.01
"""As published: SGD with Nesterov's momentum."""

SECOND_MOMENT_DECAY = 0.999
AT_ONCE = 2_500
"""Images of a batch while accuracy is measured."""


class FilteredTraining:
    """
    All parameters lie in one vector, so that a step is a handful of operations whatever the model.

    :param width: Channels of the first block.
    """

    def __init__(self, plan: RunPlan, data: ImageData, device: torch.device, width: int = 64) -> None:
        self.plan, self._data, self._device = plan, data, device
        self._weighting = METHODS[plan.method](0.0 if plan.tau is None else plan.tau)
        torch.manual_seed(plan.seed)
        self.model = resnet18(data.classes, plan.stem, width).to(device)
        self._parameters = list(self.model.parameters())
        self.flat_P = flattened(self._parameters)
        _point_into(self.flat_P, self._parameters)
        self._short_P = self.flat_P.bfloat16() if device.type == "cuda" else self.flat_P
        """What convolutions compute with: converted once for each update, and not layer by layer."""

        self._weights = [parameter for parameter in self._parameters if parameter.ndim > 1]
        self._others = [parameter for parameter in self._parameters if parameter.ndim == 1]
        _point_into(self._short_P, self._parameters, self._weights)
        self._true_N = data.train.label_N.cpu()
        self._label_N = wrong_labels(self._true_N, plan.noise, data.classes, plan.seed)
        self._allocate(data, device)
        self._recorded = Recorded(device, self._state())
        self._measure, self._update = self._recorded.step(self._measure_step), self._recorded.step(self._update_step)
        self._shorten()
        self._gram_on_host, self._epoch_on_host = OnHost(self._gram_WW), OnHost(self._epoch_7)
        self.epoch, self.history = 0, dict[str, list[Any]]()

    def _allocate(self, data: ImageData, device: torch.device) -> None:
        """What a step reads and writes stays where it is, so that the step can be replayed."""
        workers, microbatch = self.plan.workers, self.plan.microbatch
        self._label_on_device_N = self._label_N.to(device)
        self._is_wrong_N = (self._label_N != self._true_N).to(device)
        mean_3, deviation_3 = data.mean_and_deviation
        self._mean_311, self._deviation_311 = mean_3[:, None, None], deviation_3[:, None, None]
        self._index_WB = torch.zeros(workers, microbatch, dtype=torch.long, device=device)
        self._crop_WB2 = torch.zeros(workers, microbatch, 2, dtype=torch.long, device=device)
        self._flip_WB = torch.zeros(workers, microbatch, dtype=torch.bool, device=device)
        self._gradient_WP = torch.zeros(workers, len(self.flat_P), device=device)
        self._short_gradient_P = torch.zeros_like(self._short_P)
        self._gram_WW = torch.zeros(workers, workers, device=device)
        self._momentum_P = torch.zeros_like(self.flat_P)
        self._second_moment_P = torch.zeros_like(self.flat_P) if self._preconditioned else torch.zeros(0)
        self._weight_W = torch.zeros(workers, device=device)
        self._rate = torch.zeros((), device=device)
        self._counts_4 = torch.zeros(4, dtype=torch.float64, device=device)
        """Since the epoch began: images, right by the given label, wrongly labelled, of those right by that label."""

        self._epoch_7 = torch.zeros(7, dtype=torch.float64, device=device)
        """At its end: those, and the accuracy on images for tuning, for validation and for testing."""

    @property
    def _preconditioned(self) -> bool:
        return damping_of(self._weighting) is not None

    def train(self) -> Iterator[bool]:
        """To the end. Pauses whenever the device computes what the host needs, and says whether an epoch is over."""
        while self.epoch < self.plan.epochs:
            draw = draw_epoch(self._label_N, self.plan, self._data.classes, self.epoch)
            parts = [part.to(self._device) for part in (draw.index_SWB, draw.crop_SWB2, draw.flip_SWB)]
            skipped, grams = 0, list[Tensor]()
            self._counts_4.zero_()
            self.model.train()
            for step in range(len(draw)):
                for place, part in zip((self._index_WB, self._crop_WB2, self._flip_WB), parts, strict=True):
                    place.copy_(part[step])
                self._measure()
                self._gram_on_host.fetch()
                yield False
                grams.append(self._gram_on_host.fetched())
                skipped += not self._decide(grams[-1], self.epoch + step / len(draw))
            self.epoch += 1
            self._measure_epoch()
            self._epoch_on_host.fetch()
            yield False
            self._note(torch.stack(grams), skipped)
            yield True

    def _measure_step(self) -> None:
        """Gradients of all micro-batches, and their inner products."""
        index_N, crop_N2, flip_N = self._index_WB.flatten(), self._crop_WB2.flatten(0, 1), self._flip_WB.flatten()
        pixels = self._normalised(shown(self._data.padded_train, self._side, index_N, crop_N2, flip_N))
        label_N, logits_W = self._label_on_device_N[index_N], list[Tensor]()
        parts = zip(pixels.split(self.plan.microbatch), label_N.split(self.plan.microbatch), strict=True)
        for (pixel_B3HH, label_B), gradient_P in zip(parts, self._gradient_WP, strict=True):
            with self._autocast():
                logits = self.model(pixel_B3HH)
            loss = functional.cross_entropy(logits.to(self.flat_P.dtype), label_B)
            self._keep_gradient(torch.autograd.grad(loss, [*self._weights, *self._others]), gradient_P)
            logits_W.append(logits.detach())
        self._count(torch.cat(logits_W), label_N, self._is_wrong_N[index_N])
        seen_WP = self._gradient_WP / self._roots() if self._preconditioned else self._gradient_WP
        self._gram_WW.copy_(inner_products(seen_WP))

    def _keep_gradient(self, gradients: tuple[Tensor, ...], into_P: Tensor) -> None:
        stored = [as_stored(gradient) for gradient in gradients]
        weights, others = stored[: len(self._weights)], stored[len(self._weights) :]
        torch._foreach_copy_(_places(self._short_gradient_P, self._parameters, self._weights), weights)
        into_P.copy_(self._short_gradient_P)
        torch._foreach_copy_(_places(into_P, self._parameters, self._others), others)

    def _decide(self, gram_WW: Tensor, epochs: float) -> bool:
        """Whether there is an update. A skipped step changes neither weights nor momentum."""
        weight_W = self._weighting(gram_WW)
        if not bool(weight_W.any()):
            return False
        self._weight_W.copy_(weight_W, non_blocking=True)
        self._rate.fill_(self.plan.learning_rate * (1 + math.cos(math.pi * epochs / self.plan.epochs)) / 2)
        self._update()
        return True

    def _update_step(self) -> None:
        gradient_P = self._gradient_WP[0] * self._weight_W[0]
        for worker in range(1, self.plan.workers):
            gradient_P.addcmul_(self._gradient_WP[worker], self._weight_W[worker])
        if self._preconditioned:
            self._second_moment_P.lerp_(gradient_P.square(), 1 - SECOND_MOMENT_DECAY)
        gradient_P.add_(self.flat_P, alpha=WEIGHT_DECAY)
        torch.add(gradient_P, self._momentum_P, alpha=MOMENTUM, out=self._momentum_P)
        self.flat_P.addcmul_(gradient_P.add_(self._momentum_P, alpha=MOMENTUM), self._rate, value=-1)
        self._shorten()

    def _shorten(self) -> None:
        if self._short_P is not self.flat_P:
            self._short_P.copy_(self.flat_P)

    def _roots(self) -> Tensor:
        """Roots of the second moments, as `Preconditioned` asks for them; ones before the first update."""
        root_P = self._second_moment_P.sqrt()
        parts = root_P.split([parameter.numel() for parameter in self._parameters])
        floors = [(self._weighting.damping or 0) * part.square().mean().sqrt().expand(len(part)) for part in parts]
        scale_P = root_P + torch.cat(floors)
        return torch.where(scale_P > 0, scale_P, 1)

    def _count(self, logits: Tensor, label_B: Tensor, is_wrong_B: Tensor) -> None:
        right_B = logits.argmax(1) == label_B
        counted = torch.stack([torch.ones_like(right_B), right_B, is_wrong_B, right_B & is_wrong_B])
        self._counts_4.add_(counted.sum(1))

    def _note(self, gram_SWW: Tensor, skipped: int) -> None:
        images, right, wrong, memorised, tuning, validation, test = self._epoch_on_host.fetched().tolist()
        noted = {
            "skipped": skipped / len(gram_SWW),
            "cosine": mean_cosine(gram_SWW),
            "noise_scale": noise_scale(gram_SWW, self.plan.microbatch),
            "train": right / images,
            "memorised": memorised / wrong if wrong else None,
            "tuning": tuning,
            "validation": validation,
            "test": test,
        }
        for name, value in noted.items():
            self.history.setdefault(name, []).append(value if value is None else round(value, 4))

    def _measure_epoch(self) -> None:
        self.model.eval()
        parts = (self._data.tuning, self._data.validation, self._data.test)
        self._epoch_7.copy_(torch.cat([self._counts_4, torch.stack([self._accuracy(part) for part in parts])]))

    @torch.no_grad()
    def _accuracy(self, images: LabelledImages) -> Tensor:
        right = torch.zeros((), dtype=torch.float64, device=self._device)
        for pixels, label_B in zip(images.pixel_N3HH.split(AT_ONCE), images.label_N.split(AT_ONCE), strict=True):
            with self._autocast():
                right += (self.model(self._normalised(pixels)).argmax(1) == label_B).sum()
        return right / len(images.label_N)

    def _normalised(self, pixels: Tensor) -> Tensor:
        scaled = (pixels.to(self.flat_P.dtype) - self._mean_311) / self._deviation_311
        return scaled.contiguous(memory_format=torch.channels_last)

    def _autocast(self) -> torch.autocast:
        # The cache of converted weights would outlive the update in a replayed step.
        on_gpu = self._device.type == "cuda"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False)

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """Where its work goes; None on a CPU."""
        return self._recorded.stream

    @property
    def _side(self) -> int:
        return self._data.train.pixel_N3HH.shape[-1]

    def _state(self) -> dict[str, Tensor]:
        own = {"flat": self.flat_P, "momentum": self._momentum_P, "second_moment": self._second_moment_P}
        return own | {f"buffer {name}": buffer for name, buffer in self.model.named_buffers()}

    def save(self, path: Path) -> None:
        """At the end of an epoch; all else follows from the seed and the epoch's number."""
        memory = asdict(self._weighting)["_memory"] if isinstance(self._weighting, AdaptiveFilter) else {}
        content = {"epoch": self.epoch, "history": self.history, "memory": memory, "state": self._state()}
        with replacing(path) as file:
            torch.save(content, file)

    def load(self, path: Path) -> None:
        content = torch.load(path, map_location=self._device, weights_only=True)
        self.epoch, self.history = content["epoch"], content["history"]
        for name, tensor in self._state().items():
            tensor.copy_(content["state"][name])
        self._shorten()
        if isinstance(self._weighting, AdaptiveFilter):
            vars(self._weighting._memory).update(content["memory"])


def flattened(tensors: Any) -> Tensor:
    """In the order of memory, which is channels last for convolutions: nothing is rearranged."""
    return torch.cat([as_stored(tensor.detach()) for tensor in tensors])


def as_stored(tensor: Tensor) -> Tensor:
    return (tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor).reshape(-1)


def inner_products(gradient_WP: Tensor) -> Tensor:
    """One by one: a matrix product of so few and so long rows is ten times as slow on a GPU."""
    workers = range(len(gradient_WP))
    product = {(i, j): torch.dot(gradient_WP[i], gradient_WP[j]) for i in workers for j in range(i + 1)}
    return torch.stack([torch.stack([product[max(i, j), min(i, j)] for j in workers]) for i in workers])


def _point_into(flat_P: Tensor, parameters: list[nn.Parameter], chosen: list[nn.Parameter] | None = None) -> None:
    chosen = parameters if chosen is None else chosen
    for part, parameter in zip(_places(flat_P, parameters, chosen), chosen, strict=True):
        outputs, *inputs = parameter.shape
        stored = part.view(outputs, *inputs[1:], *inputs[:1])
        parameter.data = stored.permute(0, 3, 1, 2) if parameter.ndim == 4 else stored


def _places(flat_P: Tensor, parameters: list[nn.Parameter], chosen: list[nn.Parameter]) -> list[Tensor]:
    """Where those parameters lie in the vector of all."""
    wanted = {id(parameter) for parameter in chosen}
    places = zip(flat_P.split([one.numel() for one in parameters]), parameters, strict=True)
    return [place for place, parameter in places if id(parameter) in wanted]


def mean_cosine(gram_SWW: Tensor) -> float | None:
    """Over all pairs and steps; None for one worker, or where no gradient has a direction."""
    norm_SW = gram_SWW.diagonal(dim1=1, dim2=2).sqrt()
    cosine_SWW = gram_SWW / norm_SW[:, :, None] / norm_SW[:, None, :]
    mean = float(cosine_SWW[:, ~torch.eye(gram_SWW.shape[1], dtype=torch.bool)].nanmean())
    return mean if math.isfinite(mean) else None


def noise_scale(gram_SWW: Tensor, microbatch: int) -> float | None:
    """McCandlish et al. (arXiv 1812.06162), in images: from means over steps, as single steps say little."""
    workers = gram_SWW.shape[1]
    if workers == 1:
        return None
    mean_WW = gram_SWW[gram_SWW.isfinite().all(2).all(1)].mean(0)
    square_of_one, square_of_mean = float(mean_WW.diagonal().mean()), float(mean_WW.mean())
    signal = (workers * square_of_mean - square_of_one) / (workers - 1)
    noise = microbatch * (square_of_one - square_of_mean) / (1 - 1 / workers)
    return noise / signal if signal > 0 else None
