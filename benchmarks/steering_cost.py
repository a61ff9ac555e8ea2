"""What steering costs against plain DDP: a 10 M-parameter transformer, 1,024 tokens a rank and step, gloo.

    torchrun --standalone --nproc-per-node 4 benchmarks/steering_cost.py [--rounds 40 | --short] [--json FILE]

`--device cuda`: all ranks share one GPU.

All variants train in the same processes and take turns in blocks of steps, so that whatever else the machine does hits
all of them. Each steered variant is `unisono.attach(...)` as a user writes it, listening included, and is closed at the
end of its block. Prints the median time of a step of the slowest rank, and its ratio to plain DDP in the same turn.
`unisono bench` measures the same with a model of any size.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from listening_cost import TOKENS, VOCABULARY, Transformer
from torch import nn

from unisono.lab.bench.step_cost import PLAIN_DDP, ROUTES, route_cost
from unisono.lab.bench.training import Trainee
from unisono.weightings import AgreementFilter

BATCH = 8
BLOCK = 5
VARIANTS = {
    PLAIN_DDP: None,
    "listening only": {},
    "sketch, model": ROUTES["sketch, model"],
    "sketch, bucket": {"weighting": AgreementFilter(), "gram": "sketch", "scope": "bucket"},
    "exact, model": ROUTES["exact, model"],
    "exact, bucket": {"weighting": AgreementFilter(), "gram": "exact", "scope": "bucket"},
}


def trainee(device: torch.device, home: Path, batch: int) -> Trainee:
    torch.manual_seed(0)
    model = Transformer().to(device)
    generator = torch.Generator().manual_seed(dist.get_rank())

    def make_loss(wrapped):
        tokens = torch.randint(VOCABULARY, (batch, TOKENS), generator=generator).to(device)
        return nn.functional.cross_entropy(wrapped(tokens).flatten(0, 1), tokens.flatten())

    return Trainee(model, torch.optim.AdamW(model.parameters(), 3e-4), make_loss, home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="timed steps of each variant, in blocks of five")
    parser.add_argument("--short", action="store_true", help="one round: shows that it works, too short for a figure")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", metavar="FILE", help="where the result goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    home = [tempfile.mkdtemp()]
    dist.broadcast_object_list(home)
    rounds = 1 if options.short else options.rounds
    learner = trainee(torch.device(options.device), Path(home[0]), 1 if options.short else BATCH)
    result = route_cost(learner, VARIANTS, max(1, rounds // BLOCK), min(rounds, BLOCK), lambda: None)
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
