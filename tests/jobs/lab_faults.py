"""The lab's job with many faults, one after the other in the same processes: a folder and `NAME:SEED ...`."""

import sys
from pathlib import Path

from unisono.lab.processes import process_group
from unisono.lab.real_job import train

if __name__ == "__main__":
    with process_group():
        for each in sys.argv[2:]:
            name, _, seed = each.partition(":")
            train(name, int(seed), Path(sys.argv[1]))
