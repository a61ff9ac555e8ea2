"""Writes the tables of gaf.md from the runs beside it, and draws its pictures.

unisono lab paper gaf --data DIR --minutes 25 --out docs/experiments/gaf.json
python docs/experiments/gaf.py
"""

import sys
from pathlib import Path
from statistics import fmean, stdev

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "evidence"))

from looks import LOOKS, SAVED
from marked import load, table, write

from unisono.lab.experiments.gaf.plan import SIX, full_table

PAGE = HERE / "gaf.md"
RUNS = [run for run in load("gaf.json", HERE) if run["purpose"] == "table"]
NOISES = (0, 5, 50, 80, 90)
PUBLISHED = {
    "GAF, as published": {0: 63, 5: 61, 50: 48, 80: 8, 90: 4},
    "averaging at batch 128, as published": {0: 62, 5: 58, 50: 33, 80: 7, 90: 1},
}
"""Per cent, figure 6 of the paper: best validation accuracy."""

T_95 = {2: 12.706, 3: 4.303}
"""Student's t, two-sided 95 %, by the number of seeds."""

NOT_RUN = "not run yet"


def runs_of(noise, method, tau, microbatch, workers, stem="imagenet"):
    """By seed."""
    key = (noise, method, tau, microbatch, workers, stem)
    names = ("noise", "method", "tau", "microbatch", "workers", "stem")
    return {run["seed"]: run for run in RUNS if tuple(run[name] for name in names) == key}


def base(noise, method, tau):
    return runs_of(noise, method, tau, *((128, 1) if method == "averaging-128" else (100, 2)))


def called(method, tau):
    return f"{method}, tau {tau:g}" if tau is not None else method


def percent(value):
    return f"{100 * value:.1f}"


def accuracy(runs):
    """Final and best test accuracy: mean over seeds, and from the lowest to the highest where there are several."""
    if not runs:
        return NOT_RUN
    finals, bests = ([run[name] for run in runs.values()] for name in ("final", "best"))
    spread = f" ({percent(min(finals))} to {percent(max(finals))})" if len(finals) > 1 else ""
    return f"{percent(fmean(finals))}{spread}; best {percent(fmean(bests))}"


def made():
    table_plan = full_table()
    count = f"{len(RUNS)} of {len(table_plan.wanted)} runs of the table are done"
    if not RUNS:
        return f"**Unfinished: {count}.** What stands below without figures has not been run."
    unfinished = "" if len(RUNS) == len(table_plan.wanted) else "**Unfinished.** "
    one = RUNS[0]
    return f"{unfinished}{count}; {one['epochs']} epochs each, {one['device']}, torch {one['torch']}."


def main():
    rows = [[name, *(of_noise[noise] for noise in NOISES)] for name, of_noise in PUBLISHED.items()]
    rows += [[called(*one), *(accuracy(base(noise, *one)) for noise in NOISES)] for one in SIX]
    return table(["test accuracy in %", *(f"{noise} % wrong labels" for noise in NOISES)], rows)


def difference(runs, reference):
    """Final accuracy against averaging of the same micro-batches with the same seed, in points."""
    seeds = sorted(runs.keys() & reference.keys())
    if not seeds:
        return NOT_RUN
    points = [100 * (runs[seed]["final"] - reference[seed]["final"]) for seed in seeds]
    if len(points) == 1:
        return f"{points[0]:+.1f}"
    return f"{fmean(points):+.1f} ± {T_95[len(points)] * stdev(points) / len(points) ** 0.5:.1f}"


def against_averaging():
    rows = [
        [called(*one), *(difference(base(noise, *one), base(noise, "averaging", None)) for noise in NOISES)]
        for one in SIX
        if one != ("averaging", None)
    ]
    return table(["points against averaging", *(f"{noise} %" for noise in NOISES)], rows)


def share(runs, name):
    return percent(fmean(run[name] for run in runs.values())) if runs else NOT_RUN


def skipped():
    rows = [
        [called(*one), *(share(base(noise, *one), "skipped") for noise in NOISES)]
        for one in SIX
        if not one[0].startswith("averaging")
    ]
    return table(["steps skipped in %", *(f"{noise} %" for noise in NOISES)], rows)


def others():
    rows = []
    for plan in full_table().wanted:
        is_base = (plan.method, plan.tau) in SIX and plan.batch in (128, 200) and plan.stem == "imagenet"
        if plan.noise != 50 or is_base:
            continue
        runs = runs_of(50, plan.method, plan.tau, plan.microbatch, plan.workers, plan.stem)
        fair = runs_of(50, "averaging", None, plan.microbatch, plan.workers, plan.stem)
        stem = ", CIFAR stem" if plan.stem == "cifar" else ""
        compared = "" if plan.method == "averaging" else difference(runs, fair)
        size = f"{plan.workers} x {plan.microbatch}{stem}"
        rows.append([called(plan.method, plan.tau), size, accuracy(runs), compared, share(runs, "skipped")])
    return table(["method", "micro-batches", "test accuracy in %", "points against averaging", "skipped in %"], rows)


def rates():
    rows = []
    for one in SIX:
        found = [{run["learning_rate"] for run in base(noise, *one).values()} for noise in (0, 50, 80)]
        rows.append([called(*one), *(f"{rate.pop():g}" if rate else NOT_RUN for rate in found)])
    return table(["learning rate chosen", "0 %", "50 %", "80 %"], rows)


def over_training():
    """Averaging of the same micro-batches: nothing is filtered, so that only the labels differ."""
    rows = []
    for noise in NOISES:
        runs = base(noise, "averaging", None)
        if not runs:
            rows.append([f"{noise} %", *[NOT_RUN] * 6])
            continue
        run = runs[min(runs)]
        ends = [f"{run['cosine'][place]:.3f}" for place in (0, -1)]
        scales = [f"{run['noise_scale'][place]:,.0f}" if run["noise_scale"][place] else "-" for place in (0, -1)]
        learnt = percent(run["memorised"][-1]) if noise else "-"
        rows.append([f"{noise} %", *ends, *scales, percent(run["train"][-1]), learnt])
    head = ["wrong labels", "cosine, first epoch", "last", "noise scale, first", "last", "train accuracy in %"]
    return table([*head, "wrong labels learnt in %"], rows)


def convergence():
    if not RUNS:
        return NOT_RUN.capitalize() + "."
    gains = [100 * (run["test"][-1] - run["test"][-4]) for run in RUNS]
    return (
        f"Over the last tenth of the training the test accuracy changes by {fmean(gains):+.1f} points on average "
        f"({min(gains):+.1f} to {max(gains):+.1f}): the learning rate has fallen to nothing by then, so that this says "
        "that the schedule is at its end, not that a longer one would bring nothing."
    )


PARTS = {
    "made": made,
    "main": main,
    "against-averaging": against_averaging,
    "skipped": skipped,
    "others": others,
    "rates": rates,
    "over-training": over_training,
    "convergence": convergence,
}

COLOURS = {0: "#0072b2", 5: "#56b4e9", 50: "#e69f00", 80: "#d55e00", 90: "#8c3b00"}
PANELS = {
    "cosine": "mean cosine",
    "train": "accuracy in training",
    "test": "test accuracy",
    "memorised": "wrong labels learnt",
    "noise_scale": "noise scale, images",
}


def draw():
    """Averaging over the epochs, by noise."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(LOOKS):
        figure = Figure(figsize=(12, 2.6))
        for panel, (name, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
            for noise in NOISES:
                for run in base(noise, "averaging", None).values():
                    values = [float("nan") if value is None else value for value in run[name]]
                    epochs = [1 + place * (run["epochs"] - 1) / (len(values) - 1) for place in range(len(values))]
                    panel.plot(epochs, values, color=COLOURS[noise], lw=1, label=f"{noise} %" * (run["seed"] == 0))
            panel.set_title(title, fontsize=9)
            panel.set_xlabel("epoch")
            panel.spines[["top", "right"]].set_visible(False)
            if name == "noise_scale":
                panel.set_yscale("log")
        figure.axes[0].legend(frameon=False, title="wrong labels")
        figure.savefig(HERE / "gaf-over-training.svg", **SAVED)


if __name__ == "__main__":
    write(PAGE, PARTS)
    if RUNS:
        draw()
