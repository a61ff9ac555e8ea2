"""What weighing micro-batches costs in one process, against plain accumulation and the authors' package.

    python benchmarks/microbatch_cost.py [--short] [--device cuda] [--json FILE]

A ResNet-18 (11 M parameters, BatchNorm, SGD with momentum) on synthetic data of CIFAR's size. All ways take turns in
one process, with the same data and loader; on a CPU with one thread, in CPU seconds. What a way adds depends on the
parameters, not on the batch: on a CPU it is measured with micro-batches of 2 small images, where it stands out of the
noise; on a GPU with 100. `package` is gradient-agreement-filtering 0.1.3 of PyPI; without it that row is left out.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import unisono
from unisono.weightings import AgreementFilter

CLASSES, MAX_DISTANCE = 100, 0.97
BARE, PACKAGE = "plain accumulation", "package"
WAYS = {
    "sequential, mean": AgreementFilter(MAX_DISTANCE, order="sequential"),
    "sequential, halving": AgreementFilter(MAX_DISTANCE, order="sequential", fusion="halving"),
    "any order": AgreementFilter(MAX_DISTANCE),
}
TWIN = "sequential, halving"  # should decide exactly as the package does

Micros = Sequence[Subset]
Step = Callable[[Micros], int]  # one step of training; how many were taken up beside the first


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if same else shortcut

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.relu(self.body(images) + self.shortcut(images))


def resnet18(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


class Contest:
    """Every way with a model and an optimizer of its own, all alike."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.device = device
        model = resnet18(width).to(device)
        self.gradient_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
        self.models = {name: copy.deepcopy(model) for name in (BARE, *WAYS, PACKAGE)}
        self.optimizers = {name: torch.optim.SGD(one.parameters(), 0.01, 0.9) for name, one in self.models.items()}
        self.steps: dict[str, Step] = {BARE: self.accumulate}
        self.steps |= {name: self.weighing(name, weighting) for name, weighting in WAYS.items()}
        if package_found():
            self.steps[PACKAGE] = self.by_package

    def loss(self, name: str, micro: Subset) -> Tensor:
        images, labels = next(iter(DataLoader(micro, batch_size=len(micro))))
        return nn.functional.cross_entropy(self.models[name](images.to(self.device)), labels.to(self.device))

    def accumulate(self, micros: Micros) -> int:
        self.optimizers[BARE].zero_grad()
        for micro in micros:
            (self.loss(BARE, micro) / len(micros)).backward()
        self.optimizers[BARE].step()
        return len(micros) - 1

    def weighing(self, name: str, weighting: AgreementFilter) -> Step:
        workers = unisono.microbatches(self.models[name], weighting=weighting)

        def step(micros: Micros) -> int:
            for micro in micros:
                with workers.microbatch():
                    self.loss(name, micro).backward()
            kept = int(workers.reduce().count_nonzero())
            self.optimizers[name].step()
            return max(0, kept - 1)

        return step

    def by_package(self, micros: Micros) -> int:
        package: Any = importlib.import_module("gradient_agreement_filtering")
        model, optimizer = self.models[PACKAGE], self.optimizers[PACKAGE]
        settings = {"wandb": False, "verbose": False, "cos_distance_thresh": MAX_DISTANCE, "device": self.device}
        result = package.step_GAF(model, optimizer, nn.functional.cross_entropy, list(micros), **settings)
        return int(result["agreed_count"])

    def timed(self, name: str, micros: Micros) -> tuple[float, int]:
        begin = self.clock()
        taken_up = self.steps[name](micros)
        return self.clock() - begin, taken_up

    def clock(self) -> float:
        if self.device.type == "cpu":
            return time.process_time()  # whatever else the machine does
        torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def forget(self) -> None:
        """No gradients are left, and the twin has the package's weights: rounding must not lead them apart."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        if PACKAGE in self.steps:
            self.models[TWIN].load_state_dict(self.models[PACKAGE].state_dict())


def package_found() -> bool:
    try:
        importlib.import_module("gradient_agreement_filtering")
    except ImportError as error:
        print(f"LEFT OUT: the row `{PACKAGE}` ({error}). pip install gradient-agreement-filtering", file=sys.stderr)
        return False
    return True


def micro_batches(count: int, size: int, pixels: int, seed: int) -> list[Subset]:
    """Noise around one picture for each class: something to agree on, and enough that is not the same."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randn(CLASSES, 3, pixels, pixels, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(CLASSES, (count * size,), generator=generator)
    images = pictures[labels] + torch.randn(count * size, 3, pixels, pixels, generator=generator)
    data = TensorDataset(images, labels)
    return [Subset(data, range(part * size, (part + 1) * size)) for part in range(count)]


def compare(contest: Contest, count: int, size: int, pixels: int, rounds: int) -> dict[str, Any]:
    names, same, decided = list(contest.steps), 0, 0
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        micros = micro_batches(count, size, pixels, seed=turn + 1)
        contest.forget()
        names = names[1:] + names[:1]
        results = {name: contest.timed(name, micros) for name in names}
        decided += PACKAGE in results
        same += PACKAGE in results and results[TWIN][1] == results[PACKAGE][1]
        if turn > 0:  # the first turn warms up
            for name, (taken, _) in results.items():
                seconds[name].append(taken)
    bare = statistics.median(seconds[BARE])
    added = {
        name: statistics.median(one - other for one, other in zip(times, seconds[BARE], strict=True))
        for name, times in seconds.items()
        if name != BARE
    }
    return {"micro_batches": count, "images": size, "pixels": pixels, "rounds": rounds, "bare_seconds": bare,
            "added_seconds": added, "decided": decided, "decided_alike": same}  # fmt: skip


def held(contest: Contest, count: int) -> dict[str, float]:
    """The most memory that a step takes beyond what there is before it, in gradients of the whole model."""
    micros = micro_batches(count, 2, 8, seed=0)
    peak, measure = {}, peak_on_gpu if contest.device.type == "cuda" else peak_on_cpu
    for name, step in contest.steps.items():
        step(micros)
        contest.forget()
        peak[name] = measure(functools.partial(step, micros)) / contest.gradient_bytes
        contest.forget()
    return peak


def peak_on_gpu(work: Callable[[], object]) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return torch.cuda.max_memory_allocated() - before


def peak_on_cpu(work: Callable[[], object]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    with tempfile.TemporaryDirectory() as folder:
        profile.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    return max(itertools.accumulate((change for _, change in changes), initial=0))


def table(result: dict[str, Any]) -> None:
    bare, added = result["bare_seconds"], result["added_seconds"]
    print(f"\n{result['micro_batches']} micro-batches of {result['images']} images of {result['pixels']} x "
          f"{result['pixels']}: {BARE} takes {1000 * bare:.1f} ms a step")  # fmt: skip
    for name, more in added.items():
        ratio = f"{more / added[PACKAGE]:6.2f}x what the package adds" if PACKAGE in added else ""
        print(f"  {name:<20} +{1000 * more:7.1f} ms  {(bare + more) / bare:6.3f}x  {ratio}")
    if result["decided"]:
        print(f"  same number taken up as by the package in {result['decided_alike']} of {result['decided']} steps")


def listed(figures: dict[str, float], form: str) -> str:
    return "; ".join(f"{name} {figure:{form}}" for name, figure in figures.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a small model, few rounds: shows that it works")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", metavar="FILE", help="where the result goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    contest = Contest(8 if options.short else 64, torch.device(options.device))
    rounds, counts = 3 if options.short else 15, (2, 4, 8)
    if contest.device.type == "cpu":
        results = [compare(contest, count, 2, 8, rounds) for count in counts]
        of_100, _ = contest.timed(BARE, micro_batches(2, 100, 32, seed=0))
        shares = {name: more / of_100 for name, more in results[0]["added_seconds"].items()}
        print("added, as a share of 2 micro-batches of 100 images: " + listed(shares, ".1%"))
    else:
        results = [compare(contest, count, 100, 32, 4 * rounds) for count in counts]
    for result in results:
        table(result)
    peak = held(contest, 8)
    print(
        "\nmemory of a step with 8 micro-batches, in gradients: " + ", ".join(f"{k} {v:.1f}" for k, v in peak.items())
    )
    if options.json:
        whole = {"command": " ".join(["python", *sys.argv]), "torch": str(torch.__version__), "device": options.device,
                 "results": results, "memory_in_gradients": peak}  # fmt: skip
        Path(options.json).write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
