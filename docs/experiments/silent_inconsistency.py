"""Writes the tables of silent-inconsistency.md from the runs beside it, and draws its picture.

unisono lab paper silent-inconsistency --data DIR --minutes 120 --out docs/experiments/silent-inconsistency.json
python docs/experiments/silent_inconsistency.py
"""

import sys
from collections import Counter
from pathlib import Path
from statistics import fmean, median, stdev

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "evidence"))

from looks import LOOKS, SAVED
from marked import load, table, write

from unisono.lab.experiments.silent_inconsistency.perturbations import PERTURBATIONS

PAGE, PICTURE = HERE / "silent-inconsistency.md", HERE / "silent-inconsistency.svg"
RUNS = load("silent-inconsistency.json", HERE)
SEEDS = sorted({run["seed"] for run in RUNS})
REFERENCE, HEALTHY = "synchronised", ("synchronised", "divided-by-hand")
SETTINGS = [name for name in PERTURBATIONS if any(run["setting"] == name for run in RUNS)]
MEASURES = {
    "loss_std": "loss std",
    "loss_range": "loss range",
    "grad_norm_cv": "norm std / mean",
    "cos_mean": "mean cosine",
    "cos_start": "the same, first steps",
    "held_out": "held-out loss",
}
OF_THE_PAPER = ("loss_std", "loss_range", "grad_norm_cv", "cos_mean")
CELLS = (len(SETTINGS) - 1) * len(MEASURES)


def student(confidence):
    """Two-sided, with four degrees of freedom: by halving, from the closed form of its distribution."""
    low, high = 0.0, 100.0
    while high - low > 1e-9:
        t = (low + high) / 2
        within = t * t / 4 + 1
        inside = 0.75 * t / within**0.5 * (1 - t * t / (12 * within))
        low, high = (t, high) if inside < confidence else (low, t)
    return low


T_95, T_CORRECTED = student(0.95), student(1 - 0.05 / CELLS)
"""For one cell of the table, and for all of them together (Bonferroni)."""


def value(run, measure):
    if measure == "cos_start":
        return run["cos_mean"]["start"]
    return run["held_out_loss"] if measure == "held_out" else run[measure]["mean"]


def values(setting, measure):
    """By seed."""
    return {run["seed"]: value(run, measure) for run in RUNS if run["setting"] == setting}


def change(setting, measure):
    """Mean and standard error of the difference to the reference with the same seed."""
    own, reference = values(setting, measure), values(REFERENCE, measure)
    if len(SEEDS) != 5 or own.keys() != set(SEEDS) or reference.keys() != set(SEEDS):
        raise ValueError(f"Each setting should have the same five seeds. Found {sorted(own)} of {setting}.")
    differences = [own[seed] - reference[seed] for seed in SEEDS]
    return fmean(differences), stdev(differences) / len(differences) ** 0.5


def measures():
    rows = []
    for setting in SETTINGS:
        if setting == REFERENCE:
            cells = [f"{fmean(values(setting, one).values()):.3f}" for one in MEASURES]
        else:
            cells = [changed(*change(setting, one)) for one in MEASURES]
        rows.append([f"`{setting}`", *cells])
    return table(["setting", *MEASURES.values()], rows)


def changed(mean, error):
    text = f"{mean:+.3f} ± {T_95 * error:.3f}"
    if abs(mean) > T_CORRECTED * error:
        return f"**{text}**"
    return f"{text} *" if abs(mean) > T_95 * error else text


def averaged():
    """What a dashboard shows: the loss over all workers, first twentieth and last tenth of the steps."""
    rows = []
    for setting in SETTINGS:
        runs = {run["seed"]: run["loss_mean"] for run in RUNS if run["setting"] == setting}
        own, reference = (
            {run["seed"]: run["loss_mean"]["end"] for run in RUNS if run["setting"] == name}
            for name in (setting, REFERENCE)
        )
        differences = [own[seed] - reference[seed] for seed in SEEDS]
        told = f"{fmean(differences):+.3f} ± {T_95 * stdev(differences) / len(differences) ** 0.5:.3f}"
        start, end = (fmean(one[name] for one in runs.values()) for name in ("start", "end"))
        rows.append([f"`{setting}`", f"{start:.3f}", f"{end:.3f}", "" if setting == REFERENCE else told])
    return table(["setting", "averaged loss, start", "end", "end against `synchronised`"], rows)


def usual(measure):
    """From the lowest to the highest of the healthy runs."""
    found = [value(run, measure) for run in RUNS if run["setting"] in HEALTHY]
    return min(found), max(found)


def outside(setting, measure):
    low, high = usual(measure)
    return sum(not low <= one <= high for one in values(setting, measure).values())


def seen():
    rows = []
    for setting in SETTINGS:
        if setting in HEALTHY:
            continue
        runs = [run for run in RUNS if run["setting"] == setting]
        out = [f"{outside(setting, one)}/{len(runs)}" for one in OF_THE_PAPER]
        rows.append([f"`{setting}`", *out, *said(runs)])
    return table(["setting", *(MEASURES[one] for one in OF_THE_PAPER), "unisono", "at step", "right rank"], rows)


def said(runs):
    """What should be said and in how many runs it is, from which step on, and whether the right ranks are named."""
    code, number = runs[0]["code"], len(runs)
    right = [one for run in runs for one in run["findings"] if one["code"] == code]
    found = sum(run["found"] for run in runs)
    severity = f" ({Counter(one['severity'] for one in right).most_common(1)[0][0]})" if right else ""
    since = f"{median(one['first_step'] for one in right):.0f}" if right else "-"
    named = f"{sum(run['named'] for run in runs)}/{number}" if runs[0]["at_fault"] else "-"
    return f"{code}{severity} {found}/{number}", since, named


def others():
    """What else was said, and what was said of healthy runs."""
    rows = []
    for setting in SETTINGS:
        runs = [run for run in RUNS if run["setting"] == setting]
        found = Counter((one["code"], one["severity"]) for run in runs for one in run["findings"])
        found = {key: times for key, times in found.items() if key[0] != runs[0]["code"]}
        listed = ", ".join(
            f"{code} ({severity}) {times}/{len(runs)}" for (code, severity), times in sorted(found.items())
        )
        rows.append([f"`{setting}`", listed or "nothing"])
    return table(["setting", "said besides"], rows)


def settings():
    return table(["setting", "what is done"], [[f"`{name}`", PERTURBATIONS[name].what] for name in SETTINGS])


def pairs():
    """The two workers that agree most."""
    rows = []
    for setting in ("synchronised", "duplicated-shard", "near-duplicated-shard"):
        found = [run["closest_pair"] for run in RUNS if run["setting"] == setting]
        ranks = Counter(f"{one['ranks'][0]} and {one['ranks'][1]}" for one in found)
        closest, following = fmean(one["cosine"] for one in found), fmean(one["next"] for one in found)
        named = ", ".join(f"{pair} ({times})" for pair, times in ranks.most_common())
        rows.append([f"`{setting}`", named, f"{closest:.3f}", f"{following:.3f}"])
    return table(["setting", "closest two ranks (runs)", "their mean cosine", "of the next two"], rows)


def made():
    one = RUNS[0]
    minutes = sum(run["seconds"] for run in RUNS) / 60
    losses = [run["loss_mean"] for run in RUNS if run["setting"] == REFERENCE]
    start, end = (fmean(loss[name] for loss in losses) for name in ("start", "end"))
    return (
        f"{len(RUNS)} runs: {len(SETTINGS)} settings, {len(SEEDS)} seeds; {one['workers']} workers, {one['steps']} "
        f"steps, {one['batch']} sequences of {one['length']} tokens per worker, learning rate {one['lr']:g}, torch "
        f"{one['torch']}, {minutes:.0f} minutes together on two cores. In `synchronised` the mean training loss falls "
        f"from {start:.2f} (first twentieth of the steps) to {end:.2f} (last tenth)."
    )


PARTS = {
    "made": made,
    "settings": settings,
    "measures": measures,
    "averaged": averaged,
    "seen": seen,
    "others": others,
    "pairs": pairs,
}

COLOURS = {"healthy": "#767676", "shuffling": "#0072b2", "other": "#d55e00"}


def colour(setting):
    kind = "healthy" if setting in HEALTHY else "shuffling" if setting.startswith("shuffling") else "other"
    return COLOURS[kind]


PANELS = {"loss_std": (0.8, 1.4), "grad_norm_cv": (0.8, 1.4), "cos_mean": (0.5, 2.0), "held_out": (0.99, 1.05)}
"""From which to which multiple of the reference is drawn; what lies beyond stands at the edge, with a number."""


def draw():
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(LOOKS):
        figure = Figure(figsize=(10, 1 + 0.24 * len(SETTINGS)))
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for panel, (measure, limits) in zip(panels, PANELS.items(), strict=True):
            panel.axvline(1, color="#dddddd", zorder=0)
            for height, setting in enumerate(SETTINGS):
                draw_row(panel, height, setting, measure, limits)
            panel.set_xlim(*limits)
            panel.set_title(MEASURES[measure], fontsize=9)
            panel.spines[["top", "right", "left"]].set_visible(False)
            panel.tick_params(left=False)
        panels[0].set_yticks(range(len(SETTINGS)), SETTINGS)
        panels[0].invert_yaxis()
        figure.savefig(PICTURE, **SAVED)


def draw_row(panel, height, setting, measure, limits):
    own, reference = values(setting, measure), values(REFERENCE, measure)
    ratios = [own[seed] / reference[seed] for seed in SEEDS]
    low, high = limits
    if low <= min(ratios) and max(ratios) <= high:
        panel.plot(ratios, [height] * len(ratios), "o", ms=4, alpha=0.7, mew=0, color=colour(setting), clip_on=False)
        return
    below = fmean(ratios) < 1
    panel.plot(low if below else high, height, "<" if below else ">", color=colour(setting), clip_on=False, ms=5)
    place, side = (low, "left") if below else (high, "right")
    panel.annotate(
        f"x {fmean(ratios):.2g}",
        (place, height),
        (8 if below else -8, 0),
        textcoords="offset points",
        ha=side,
        va="center",
        fontsize=8,
    )


if __name__ == "__main__":
    write(PAGE, PARTS)
    draw()
