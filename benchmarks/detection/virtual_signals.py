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
        self._window_steps = setting.window_steps
        self._window = -1

    def take(
        self,
        step: int,
        loss_V: Tensor,
        gradient_VD: Tensor,
        mean_RD: Tensor,
        times_V: Tensor,
        samples: int,
        skipped: bool,
        heard_R: Sequence[bool],
        rate_R: Sequence[float],
    ) -> list[AllRanksStep]:
        finite_V = (gradient_VD.isfinite().all(1) & loss_V.isfinite()).tolist()
        square_VG = self._squares(gradient_VD) if any(heard_R) else [()] * len(loss_V)
        sketch_VK = self._sketches(gradient_VD, step) if any(heard_R) else None
        share_R = (mean_RD.double().square().sum(1) / self._workers).tolist()
        slowest_R = times_V.unflatten(0, (len(mean_RD), -1)).amax(1).tolist()
        values = zip(loss_V.tolist(), times_V.tolist(), square_VG, finite_V, strict=True)
        all_ranks_steps = []
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
                window=step // self._window_steps * self._window_steps,
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
        for run, heard in enumerate(heard_R):
            own = slice(run * self._workers, (run + 1) * self._workers)
            all_ranks_steps.append(
                AllRanksStep(step, tuple(said[own]), sketch_VK[own] if heard and sketch_VK is not None else None)
            )
        return all_ranks_steps

    def _squares(self, gradient_VD: Tensor) -> list[list[float]]:
        groups = gradient_VD.double().split(list(self.group_sizes.values()), 1)
        return torch.stack([group.square().sum(1) for group in groups], 1).tolist()

    def _sketches(self, gradient_VD: Tensor, step: int) -> Tensor:
        if step // self._window_steps != self._window:
            self._window = step // self._window_steps
            self._bucket_D, self._sign_D = self._choices(self._window)
        sketch_VK = torch.zeros(len(gradient_VD), self.length)
        sketch_VK.index_add_(1, self._bucket_D, gradient_VD * self._sign_D)
        return dequantise(*quantise(sketch_VK))

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
