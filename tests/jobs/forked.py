"""Training scripts as they are, one after the other, their ranks forked from this process: torch is loaded only once.

Called with the folder for results and `WORKERS:SCRIPT ...`; a run lies in `<folder>/<parent>/<name>`, and how each rank
ended in `codes.json`. Start-up as a launcher does it is tested elsewhere.
"""

import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 (optimizers import it with their first step: once here, not in each rank)

import unisono.attaching  # noqa: F401 (as above)

HANGS_AFTER = 90


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def become_rank(rank, workers, port, script, run_dir):
    """In the child: never returns."""
    signal.alarm(HANGS_AFTER)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "UNISONO_RUN_DIR": str(run_dir),
    }
    sys.argv, sys.path[0] = [str(script)], str(script.parent)
    runpy.run_path(str(script), run_name="__main__")
    sys.exit(0)


def codes_of(workers, script, run_dir):
    port, children = free_port(), []
    for rank in range(workers):
        if not (child := os.fork()):
            become_rank(rank, workers, port, script, run_dir)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main(folder, *lines):
    codes = {}
    for line in lines:
        workers, _, script = line.partition(":")
        path = Path(script)
        name = f"{path.parent.name}/{path.stem}"
        sys.stdout.flush()
        sys.stderr.write(f"== {name}\n")
        sys.stderr.flush()
        codes[name] = codes_of(int(workers), path, Path(folder, name))
    Path(folder, "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
