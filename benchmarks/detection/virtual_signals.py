"""From the gradients of virtual workers to what real ones would have said.

R = runs, W = workers of a run, V = R x W virtual workers, D = numbers in a gradient, G = layer groups, K = sketch
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from benchmarks.detection.setting import Setting
from torch import Tensor

from unisono.listen.messages import AllRanksStep, RankStep
from unisono.sketch import Fold, default_length, dequantise, quantise, window_seed, wrap


class Readings:
    def __init__(self, names: Sequence[str], elements: Sequence[int], setting: Setting) -> None:
        self._workers = setting.workers
        self._names, self._elements = list(names), list(elements)
        sizes = zip(names, elements, strict=True)
        groups = groupby(sizes, lambda pair: pair[0].split(".")[0])
        self.group_sizes = {group: sum(size for _, size in members) for group, members in groups}
        self.length = default_length(sum(elements))
        self._choices_of: dict[int, tuple[Tensor, Tensor]] = {}

    def take(
        self,
        step: int,
        loss_V: Tensor,
        gradient_VD: Tensor,
        mean_RD: Tensor,
        times_V: Tensor,
        samples: int,
        skipped: bool,
        window_R: Sequence[int | None],
        rate_R: Sequence[float],
    ) -> list[AllRanksStep]:
        finite_V = (gradient_VD.isfinite().all(1) & loss_V.isfinite()).tolist()
        heard_R = [window is not None for window in window_R]
        square_VG = self._squares(gradient_VD) if any(heard_R) else [()] * len(loss_V)
        sketch_RWK = self._sketches(gradient_VD, window_R)
        share_R = (mean_RD.double().square().sum(1) / self._workers).tolist()
        slowest_R = times_V.unflatten(0, (len(mean_RD), -1)).amax(1).tolist()
        values = zip(loss_V.tolist(), times_V.tolist(), square_VG, finite_V, strict=True)
        said = [
            RankStep(
                step=step,
                time=float(step),
                loss=loss,
                finite=finite,
                skipped=skipped,
                compute=compute,
                seconds=slowest_R[place // self._workers],
                heard=heard_R[place // self._workers],
                window=window_R[place // self._workers] or 0,
                nonfinite=int(not finite),
                reduced_share=share_R[place // self._workers],
                squared_norm_G=tuple(square_G),
                lr=rate_R[place // self._workers],
                samples=samples,
                content=place,
                fresh=True,
            )
            for place, (loss, compute, square_G, finite) in enumerate(values)
        ]
        return [
            AllRanksStep(step, tuple(said[run * self._workers : (run + 1) * self._workers]), sketch_WK)
            for run, sketch_WK in enumerate(sketch_RWK)
        ]

    def _squares(self, gradient_VD: Tensor) -> list[list[float]]:
        groups = gradient_VD.double().split(list(self.group_sizes.values()), 1)
        return torch.stack([group.square().sum(1) for group in groups], 1).tolist()

    def _sketches(self, gradient_VD: Tensor, window_R: Sequence[int | None]) -> list[Tensor | None]:
        sketch_RWK: list[Tensor | None] = [None] * len(window_R)
        for window in {window for window in window_R if window is not None}:
            if window not in self._choices_of:
                # Runs in a burst have a window of their own; old windows never come back.
                kept = list(self._choices_of.items())[-len(window_R) :]
                self._choices_of = {**dict(kept), window: self._choices(window)}
            bucket_D, sign_D = self._choices_of[window]
            runs = [run for run, own in enumerate(window_R) if own == window]
            own_VD = gradient_VD.unflatten(0, (len(window_R), self._workers))[runs].flatten(0, 1)
            sketch_VK = torch.zeros(len(own_VD), self.length).index_add_(1, bucket_D, own_VD * sign_D)
            parts = dequantise(*quantise(sketch_VK)).unflatten(0, (len(runs), self._workers))
            for run, sketch_WK in zip(runs, parts, strict=True):
                sketch_RWK[run] = sketch_WK
        return sketch_RWK

    def _choices(self, window: int) -> tuple[Tensor, Tensor]:
        """Where the sketch puts each number of the gradient and with which sign, read off sketches of known numbers."""
        fold = Fold(self._names, self._elements, self.length, "cpu", window_seed(window))
        buckets, signs = [], []
        for index, count in enumerate(self._elements):
            accumulator_2K = torch.zeros(2 * self.length)
            fold.add(index, torch.arange(1, count + 1, dtype=torch.float32), accumulator_2K)
            sketch_K = wrap(accumulator_2K)
            place = sketch_K.nonzero()[:, 0]
            bucket = torch.empty(count, dtype=torch.int64)
            bucket[sketch_K[place].abs().long() - 1] = place
            buckets.append(bucket)
            signs.append(sketch_K[bucket].sign())
        return torch.cat(buckets), torch.cat(signs)
