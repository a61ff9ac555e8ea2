"""The lab's job with many faults, one after the other in the same processes: a folder and `NAME:SEED ...`."""

import runpy
import sys
from pathlib import Path

from unisono.lab.faults.honest_job import process_group

JOB = Path(__file__).parents[2] / "benchmarks" / "detection" / "real_job.py"

if __name__ == "__main__":
    train = runpy.run_path(str(JOB))["train"]
    with process_group():
        for each in sys.argv[2:]:
            name, _, seed = each.partition(":")
            train(name, int(seed), Path(sys.argv[1]))
