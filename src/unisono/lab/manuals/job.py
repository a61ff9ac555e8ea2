"""Runs cases of the manuals one after the other as forked ranks, with unisono listening as it does by default.

`python -m unisono.lab.manuals.job FOLDER SLUG:SEED[:look-alike] ...`: the runs lie in FOLDER, named like the orders.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch._dynamo  # noqa: F401 (optimizers import it with their first step: once here, not in each rank)

from unisono.lab.faults.honest_job import process_group
from unisono.lab.launching import fork_ranks
from unisono.lab.manuals import ordered
from unisono.lab.manuals.case import CaseOrder
from unisono.monitor import autoattach


def run(orders: Sequence[CaseOrder], folder: Path) -> None:
    """This process must not have started threads that compute."""
    autoattach.install()
    folder.mkdir(parents=True, exist_ok=True)
    for order in orders:
        os.environ["UNISONO_RUN_DIR"] = str(folder / str(order))
        fork_ranks(order.case.workers, functools.partial(_be_rank, order), folder / f"{order}.txt")


def _be_rank(order: CaseOrder, rank: int) -> None:
    with process_group():
        order.train()


if __name__ == "__main__":
    run([ordered(text) for text in sys.argv[2:]], Path(sys.argv[1]))
