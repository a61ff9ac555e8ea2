"""What steering costs against plain DDP: a 10 M-parameter transformer, 1,024 tokens a rank and step, gloo.

    torchrun --standalone --nproc-per-node 4 benchmarks/steering_cost.py [--rounds 40 | --short] [--json FILE]

`--device cuda`: all ranks share one GPU.

All variants train their own copy in the same processes and take turns step by step, so that whatever else the machine
does hits all of them. Each steered variant is `unisono.attach(...)` as a user writes it, listening included. Prints the
median time of a step of the slowest rank, and its ratio to plain DDP; and how often a decision by sketches differs from
the one by exact inner products of the same gradients.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from listening_cost import TOKENS, VOCABULARY, Transformer
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.weightings import AgreementFilter

BATCH = 8
PLAIN = "plain DDP"
VARIANTS: dict[str, dict[str, Any] | None] = {
    PLAIN: None,
    "listening only": {},
    "sketch, model": {"weighting": AgreementFilter(), "gram": "sketch"},
    "sketch, bucket": {"weighting": AgreementFilter(), "gram": "sketch", "scope": "bucket"},
    "exact, model": {"weighting": AgreementFilter(), "gram": "exact"},
    "exact, bucket": {"weighting": AgreementFilter(), "gram": "exact", "scope": "bucket"},
}


class Trainee:
    def __init__(self, options: dict[str, Any] | None, device: torch.device, home: str, name: str) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(Transformer().to(device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 3e-4)
        self.seconds: list[float] = []
        self.monitor = None
        if options is not None:
            self.monitor = unisono.attach(self.model, self.optimizer, run_dir=f"{home}/{name}", **options)

    def step(self, tokens: Tensor) -> None:
        dist.barrier()
        began = time.perf_counter()
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten()).backward()
        self.optimizer.step()
        if tokens.is_cuda:
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - began)


def slowest(seconds: list[float]) -> list[float]:
    """Of all ranks, step by step."""
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    found: list[float] = times.tolist()
    return found


def measured(rounds: int, device: torch.device, home: str) -> dict[str, Any]:
    trainees = {name: Trainee(options, device, home, name) for name, options in VARIANTS.items()}
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(rounds + 3):
        tokens = torch.randint(VOCABULARY, (BATCH, TOKENS), generator=generator).to(device)
        for trainee in trainees.values():
            trainee.step(tokens)
    times = {name: slowest(trainee.seconds[3:]) for name, trainee in trainees.items()}
    for trainee in trainees.values():
        if trainee.monitor is not None:
            trainee.monitor.close()
    plain = times[PLAIN]
    return {
        "milliseconds": {name: 1000 * statistics.median(seconds) for name, seconds in times.items()},
        "ratio": {name: _ratio(seconds, plain) for name, seconds in times.items()},
    }


def _ratio(seconds: list[float], plain: list[float]) -> float:
    """Median of the ratios of neighbouring steps."""
    return statistics.median(one / other for one, other in zip(seconds, plain, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--short", action="store_true", help="3 rounds: shows that it works, too short for a figure")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", metavar="FILE", help="where the result goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    home = [tempfile.mkdtemp()]
    dist.broadcast_object_list(home)
    result = measured(3 if options.short else options.rounds, torch.device(options.device), home[0])
    if dist.get_rank() == 0:
        show(result, options)
    dist.barrier()
    gc.collect()
    time.sleep(0.2)
    dist.destroy_process_group()


def show(result: dict[str, Any], options: argparse.Namespace) -> None:
    made = f"torchrun --standalone --nproc-per-node {dist.get_world_size()} benchmarks/steering_cost.py"
    made += f" --device {options.device} --rounds {options.rounds}"
    print("| variant | ms a step | against plain DDP |\n|---|---|---|")
    for name, ratio in result["ratio"].items():
        print(f"| {name} | {result['milliseconds'][name]:.0f} | {ratio:.3f} |")
    if options.json:
        content = {"command": made, "torch": str(torch.__version__), "workers": dist.get_world_size(), **result}
        Path(options.json).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
