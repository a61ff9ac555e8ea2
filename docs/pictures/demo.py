"""Draws the picture of the README from the two runs of `unisono demo`.

unisono demo --out demo
python docs/pictures/demo.py demo docs/pictures/demo.svg
"""

import sys
from pathlib import Path

import matplotlib as mpl

from unisono.runfile import read_run

mpl.use("svg")
from matplotlib import pyplot as plt

HEALTHY, FAULTY = "#0072b2", "#d55e00"  # told apart by colour-blind people too


def draw(folder, target):
    runs = {"healthy": HEALTHY, "duplicated-data": FAULTY}
    mpl.rcParams |= {"svg.hashsalt": "unisono", "font.family": "sans-serif", "font.size": 11, "svg.fonttype": "path"}
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    for name, colour in runs.items():
        records = read_run(Path(folder, name)).timeline()
        left.plot(*smoothed(records, "loss_mean"), color=colour)
        right.plot(*smoothed(records, "cos_mean"), color=colour)
    left.set_title("what everybody watches", loc="left")
    right.set_title("what unisono hears", loc="left")
    left.set_ylabel("averaged loss")
    right.set_ylabel("mean cosine between workers")
    left.annotate("both fall; no error anywhere", (0.35, 0.8), xycoords="axes fraction")
    right.annotate("every worker reads the same shard", (0.25, 0.86), xycoords="axes fraction", color=FAULTY)
    right.annotate("four shards, as it should be", (0.3, 0.14), xycoords="axes fraction", color=HEALTHY)
    right.set_ylim(-0.1, 1.1)
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target, metadata={"Date": None}, facecolor="white")


def smoothed(records, field, width=8):
    known = [(record.step, getattr(record, field)) for record in records if getattr(record, field) is not None]
    pieces = [known[begin : begin + width] for begin in range(0, len(known) - width + 1, width)]
    return zip(*[(piece[0][0], sum(value for _, value in piece) / width) for piece in pieces], strict=True)


if __name__ == "__main__":
    draw(*sys.argv[1:])
