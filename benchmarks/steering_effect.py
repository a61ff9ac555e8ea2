"""What a worker that computes nonsense does to training, with and without steering. Four real processes:

    torchrun --standalone --nproc-per-node 4 benchmarks/steering_effect.py --json docs/evidence/steering_effect.json

From step 100 on the last rank's gradients point the other way, or are random. The same run is made with plain
averaging, with filters, and with that rank left out by hand from the same step on, which is the best that can be done.
Two settings: batches large enough for healthy workers to agree, and batches so small that one step tells nothing.
"""

import argparse
import gc
import hashlib
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.common.schedule import every
from unisono.records.runfile import read_run
from unisono.weightings import AdaptiveFilter, AgreementFilter, Mean, Windowed

FEATURES, CLASSES, HIDDEN = 64, 10, 128
FROM = 100
SETTINGS = {"clear": {"batch": 1024, "rate": 0.05, "steps": 300}, "noisy": {"batch": 4, "rate": 0.02, "steps": 600}}
FAULTS = ("none", "opposite", "random")


class LeftOut:
    """The best that can be done: it knows."""

    def __init__(self):
        self.step = -1

    def __call__(self, gram_WW):
        self.step += 1
        workers = len(gram_WW)
        bad = workers - 1 if self.step >= FROM else None
        kept = [worker for worker in range(workers) if worker != bad]
        return [1 / len(kept) if worker in kept else 0.0 for worker in range(workers)]


WEIGHTINGS = {
    "plain mean": Mean,
    "left out by hand": LeftOut,
    "AgreementFilter()": AgreementFilter,
    "AdaptiveFilter()": AdaptiveFilter,
    "Windowed(AgreementFilter())": lambda: Windowed(AgreementFilter()),
}


def spoil(model, fault, now):
    """Gradients of the last rank, as they are computed, before anybody hears them."""
    if dist.get_rank() != dist.get_world_size() - 1 or fault == "none":
        return
    for parameter in model.parameters():
        if fault == "opposite":
            parameter.register_hook(lambda gradient: -gradient if now() >= FROM else gradient)
        else:
            noise = torch.Generator().manual_seed(7)
            parameter.register_hook(lambda gradient, g=noise: randomised(gradient, g) if now() >= FROM else gradient)


def randomised(gradient, generator):
    noise = torch.randn(gradient.shape, generator=generator)
    return noise * (gradient.norm() / noise.norm())


def teacher(inputs):
    generator = torch.Generator().manual_seed(5)
    first, second = torch.randn(FEATURES, 64, generator=generator), torch.randn(64, CLASSES, generator=generator)
    return (torch.tanh(inputs @ first / 4) @ second).argmax(1)


def train(weighting, fault, run_dir, batch, rate, steps):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
    model = DistributedDataParallel(nn.Sequential(net, nn.Linear(HIDDEN, CLASSES)))
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.5)
    monitor = unisono.attach(model, optimizer, weighting=weighting, run_dir=run_dir, schedule=every(1))
    generator, equal = torch.Generator().manual_seed(100 + dist.get_rank()), True
    now = [0]
    spoil(model, fault, lambda: now[0])
    for now[0] in range(steps):
        inputs = torch.randn(batch, FEATURES, generator=generator)
        optimizer.zero_grad()
        cross_entropy(model(inputs), teacher(inputs)).backward()
        optimizer.step()
        equal = equal and same_everywhere(model)
    monitor.close()
    test = torch.randn(20_000, FEATURES, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        return float(cross_entropy(model.module(test), teacher(test))), equal


def same_everywhere(model):
    sha = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, sha.hexdigest())
    return len(set(digests)) == 1


def measured(setting, fault, name, home):
    run_dir = str(Path(home) / f"{setting}-{fault}-{name}")
    loss, equal = train(WEIGHTINGS[name](), fault, run_dir, **SETTINGS[setting])
    records = read_run(run_dir).timeline() if dist.get_rank() == 0 else []
    bad = dist.get_world_size() - 1
    cosines = [healthy_cosine(record) for record in records if record.cos_WW]
    late = [record for record in records if record.step >= FROM and not record.skipped]
    weights = [record.weight_W or (1.0,) * (bad + 1) for record in late]
    return {
        "setting": setting,
        "fault": fault,
        "weighting": name,
        "loss": loss,
        "bit_equal_on_all_ranks": equal,
        "healthy_cosine": sum(cosines) / max(1, len(cosines)),
        "bad_kept": sum(weight_W[bad] != 0 for weight_W in weights) / max(1, len(weights)),
        "healthy_kept": sum(weight_W[rank] != 0 for weight_W in weights for rank in range(bad))
        / max(1, bad * len(weights)),
        "skipped": sum(record.skipped for record in records) / max(1, len(records)),
    }


def healthy_cosine(record):
    """Of all pairs without the last rank."""
    row_WW = [row[: len(row) - 1] for row in record.cos_WW[:-1]]
    pairs = [row_WW[one][other] for one in range(len(row_WW)) for other in range(one)]
    return sum(pairs) / len(pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--settings", nargs="+", default=SETTINGS)
    parser.add_argument("--faults", nargs="+", default=FAULTS)
    parser.add_argument("--weightings", nargs="+", default=WEIGHTINGS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    home = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(home)
    rows = []
    for choice in itertools.product(args.settings, args.faults, args.weightings):
        rows.append(measured(*choice, home[0]))
        show(rows[-1])
    if args.json and dist.get_rank() == 0:
        made = "torchrun --standalone --nproc-per-node 4 benchmarks/steering_effect.py"
        Path(args.json).write_text(
            json.dumps({"command": made, "torch": torch.__version__, "rows": rows}, indent=1) + "\n"
        )
    dist.barrier()
    gc.collect()
    time.sleep(0.2)
    dist.destroy_process_group()


def show(row):
    if int(os.environ["RANK"]) == 0:
        print(
            f"{row['setting']:<6} {row['fault']:<9}{row['weighting']:<29}loss {row['loss']:.4f}  cosine "
            f"{row['healthy_cosine']:.2f}  bad kept {row['bad_kept']:.2f}  healthy kept {row['healthy_kept']:.2f}  "
            f"skipped {row['skipped']:.2f}  bit-equal {row['bit_equal_on_all_ranks']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
