"""Ranks of a script, forked from a process that has torch loaded: most of what a small job costs is that loading.

`python forked.py WORKERS SCRIPT [ARGUMENT ...]` ends like torchrun: with 1 if a rank failed, after ending the others
(with LEAVE_OTHERS in the environment it leaves them alone, as a shell would that had started them one by one).
Start-up, restarts and signals as a launcher does them are tested with torchrun.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 (optimizers import it with their first step: once here, not in each rank)

from unisono.lab.launching import free_port


def become_rank(rank, workers, port, script, arguments):
    """In the child: never returns."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
    sys.argv, sys.path[0] = [str(script), *arguments], str(Path(script).parent)
    runpy.run_path(str(script), run_name="__main__")
    sys.exit(0)


def run(workers, script, arguments=()):
    """How each rank ended; those that are left when one has failed are told to end."""
    port, ranks, codes = free_port(), {}, {}
    sys.stdout.flush()
    sys.stderr.flush()
    for rank in range(workers):
        if not (child := os.fork()):
            become_rank(rank, workers, port, script, arguments)
        ranks[child] = rank
    while len(codes) < workers:
        child, status = os.wait()
        codes[ranks[child]] = os.waitstatus_to_exitcode(status)
        first = not any(code for rank, code in codes.items() if rank != ranks[child])
        if status and first and "LEAVE_OTHERS" not in os.environ:
            sys.stderr.write(f"rank {ranks[child]} ended first, with {codes[ranks[child]]}\n")
            for other in ranks.keys() - {child}:
                if ranks[other] not in codes:
                    os.kill(other, signal.SIGTERM)
    return [codes[rank] for rank in range(workers)]


if __name__ == "__main__":
    sys.exit(1 if any(run(int(sys.argv[1]), sys.argv[2], sys.argv[3:])) else 0)
