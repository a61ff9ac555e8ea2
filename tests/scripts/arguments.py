"""Settings come from the command line, some of them looking like ours."""

import argparse
import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weights import write_weights


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--out", default="nowhere")
    parser.add_argument("data", nargs="*")
    return parser.parse_args()


def train(args):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(10, 3), gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    torch.manual_seed(10 + dist.get_rank())
    for step in range(args.steps):
        x = torch.randn(8, 10)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % args.every == 0:
            print(f"step {step} loss {loss.item():.6f}")
    write_weights(model.module)
    dist.barrier()


args = parse()
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print(sys.argv[1:], vars(args))
train(args)
gc.collect()
dist.destroy_process_group()
