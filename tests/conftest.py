"""Side by side, each process of tests computes on one thread: more would wait for each other most of the time."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
