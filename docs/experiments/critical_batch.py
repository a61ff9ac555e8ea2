"""Writes the figures of critical-batch.md from the runs beside it, and draws its picture.

unisono lab paper critical-batch --data DIR --minutes 60 --out docs/experiments/critical-batch.json
python docs/experiments/critical_batch.py
"""

import math
import sys
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "evidence"))

from marked import load, table, write

from unisono.lab.experiments.critical_batch.fit import fitted
from unisono.lab.experiments.critical_batch.plan import REAL, TUNED_WITH, Plan
from unisono.lab.experiments.critical_batch.task import Way

PAGE, PICTURE = HERE / "critical-batch.md", HERE / "critical-batch.svg"
RUNS = load("critical-batch.json", HERE)
PLAN = Plan(REAL, RUNS)
STEPS = PLAN.steps()
CRITICAL = fitted(STEPS)
TURNS = 2_048
"""The batch size up to which larger ones were seen to help."""

LISTENED = sorted((run for run in RUNS if run["kind"] == "listened"), key=lambda run: run["seed"])


def averaged(batch):
    return PLAN.results("averaged", Way(batch, 0.0, TUNED_WITH))


def number(value):
    """Two digits: the rest is noise."""
    if value is None or not math.isfinite(value):
        return "no end"
    return f"{float(f'{value:.2g}'):,.0f}"


def spread(values):
    """The middle, and the smallest and largest."""
    return f"{number(median(values))} ({number(min(values))} to {number(max(values))})"


def over_training(run):
    """The noise scale as the model asks for it: a stretch counts as much as it would with perfect gradients."""
    known = [stretch for stretch in run["stretches"] if stretch.get("value") is not None]
    weights = [1 / (1 + stretch["value"] / run["batch"]) for stretch in known]
    return sum(w * stretch["value"] for w, stretch in zip(weights, known, strict=True)) / sum(weights)


def start(run):
    return run["stretches"][0]["value"]


def end(run):
    return run["stretches"][-1]["value"]


def scaling(run):
    return run["scaling"]["value"]


def made():
    minutes = sum(run.get("seconds", 0.0) for run in RUNS) / 60
    versions = sorted({f"unisono {run['unisono']}, torch {run['torch']}" for run in RUNS})
    return (
        f"Made by `{RUNS[-1]['command']}` with {'; '.join(versions)}: {len(RUNS)} runs, {minutes:.0f} minutes of one "
        f"core and {len(LISTENED)} runs of {LISTENED[0]['workers']} processes."
    )


def sizes():
    rows = []
    for batch, steps in STEPS.items():
        runs = averaged(batch)
        taken = [run["steps"] for run in runs]
        rows.append(
            [
                f"{batch:,}",
                f"{runs[0]['rate']:.3g}",
                f"{number(steps)} ({number(min(taken))} to {number(max(taken))})",
                number(steps * batch),
                f"{steps / CRITICAL.steps(batch):.2f}",
            ]
        )
    head = ["batch", "learning rate", "steps to the target (seeds)", "samples", "steps, relative to the curve"]
    return table(head, rows)


def noise():
    rows = []
    for name, value in (
        ("in the first tenth", start),
        ("in the last tenth, at the target", end),
        ("over the training, as the model weighs it", over_training),
        ("`unisono scaling`, of the last half", scaling),
    ):
        values = [value(run) for run in LISTENED]
        rows.append([name, spread(values), f"{median(values) / CRITICAL.value:.2f}"])
    return table(["noise scale, in samples", "median (seeds)", "relative to the critical batch size"], rows)


def stretches():
    rows = []
    for at in range(len(LISTENED[0]["stretches"])):
        parts = [run["stretches"][at] for run in LISTENED]
        ends = [[part.get(end) for part in parts] for end in ("low", "high")]
        low, high = (None if None in values else fmean(values) for values in ends)
        values = [part["value"] for part in parts if part.get("value") is not None]
        steps = f"{parts[0]['first_step']:,} to {parts[0]['last_step']:,}"
        loss = fmean(part["loss"] for part in parts)
        rows.append(
            [steps, f"{loss:.2f}", number(fmean(values)) if values else "-", f"{number(low)} to {number(high)}"]
        )
    return table(["steps", "training loss", "noise scale", "90 % interval of one run"], rows)


def filters():
    return table(
        [
            *("micro-batches", "learning rates", "samples, averaged", "samples, filtered", "times as many"),
            *("steps skipped", "micro-batches kept"),
        ],
        [row_of_filter(micro, distance) for distance in REAL.distances for micro in REAL.micros],
    )


def row_of_filter(micro, distance):
    found, plain = filtered(micro, distance), averaged(micro * REAL.in_a_step)
    samples = [run["steps"] * run["batch"] for run in found.runs]
    return [
        f"{REAL.in_a_step} of {micro}",
        f"{plain[0]['rate']:.3g}, {found.runs[0]['rate']:.3g}",
        number(STEPS[micro * REAL.in_a_step] * micro * REAL.in_a_step),
        f"{number(geometric_mean(samples))} ({number(min(samples))} to {number(max(samples))})",
        f"{found.times:.2f}",
        f"{found.skipped:.0%}",
        f"{found.kept:.0%}",
    ]


class Filtered(NamedTuple):
    runs: list
    times: float
    """Samples, relative to plain averaging."""

    skipped: float
    kept: float


def filtered(micro, distance):
    batch = micro * REAL.in_a_step
    runs = PLAN.results("filtered", Way(batch, 0.0, TUNED_WITH, micro, distance))
    return Filtered(
        runs,
        geometric_mean([run["steps"] for run in runs]) / STEPS[batch],
        fmean(run["skipped"] / run["steps"] for run in runs),
        fmean(run["kept"] for run in runs),
    )


def answer():
    return f"{of_the_filter()}\n\n{of_the_command()}\n\n{of_the_model()}"


def of_the_filter():
    small, middle, large = (filtered(micro, REAL.distances[0]) for micro in REAL.micros)
    return (
        f"**The filter does not make small micro-batches pay here.** With four of {REAL.micros[0]} samples, far below "
        f"the noise scale, it takes {small.times:.1f} times the samples of plain averaging and skips "
        f"{small.skipped:.0%} of the steps; with four of {REAL.micros[1]}, {middle.times:.1f} times. With four of "
        f"{REAL.micros[2]} it keeps {large.kept:.0%} of them and takes {large.times:.2f} times the samples. Gradients "
        "that disagree are probably mostly "
        "noise here, which averaging removes; leaving them out throws samples away. The paper reports that "
        "micro-batches nearly an order of magnitude below the critical batch size are enough, on images, with and "
        "without wrong labels."
    )


def of_the_command():
    told, weighed = (median([value(run) for run in LISTENED]) for value in (scaling, over_training))
    grows = f"from {number(median(map(start, LISTENED)))} in the first tenth to {number(median(map(end, LISTENED)))}"
    return (
        "**What `unisono scaling` says late in a run is too large for the whole of it.** Of the last half it says "
        f"{number(told)} samples; training really stops benefiting around {number(CRITICAL.value)} (90 %: "
        f"{number(CRITICAL.low)} to {number(CRITICAL.high)}), {told / CRITICAL.value:.1f} times less. The noise scale "
        f"grows, {grows} at the target, and the steps of the beginning count as well. Weighed over the whole training, "
        f"as the model asks for, it is {number(weighed)}: {weighed / CRITICAL.value:.2f} times what was found by "
        "trying."
    )


def of_the_model():
    off = max(abs(math.log(steps / CRITICAL.steps(batch))) for batch, steps in STEPS.items())
    fewer = {batch: steps for batch, steps in STEPS.items() if batch <= TURNS}
    other, weighed = fitted(fewer), median(map(over_training, LISTENED))
    rates = {batch: averaged(batch)[0]["rate"] for batch in STEPS}
    largest = max(rates.values())
    since = min(batch for batch, rate in rates.items() if rate == largest)
    return (
        f"**The turn is sharper than the model's.** Up to {since} samples twice the batch takes half the steps; from "
        f"{TURNS:,} on there is nothing more to win ({number(STEPS[TURNS])} steps there, "
        f"{number(STEPS[max(STEPS)])} with {max(STEPS):,}). Single sizes lie up to {100 * math.expm1(off):.0f} % off "
        f"the curve. From {since} on {largest:g} is the best learning rate, and none is quicker with {2 * largest:g}, "
        "where training often goes to pieces: probably the largest step that the loss bears ends the benefit, as well "
        f"as the noise. Without the sizes above {TURNS:,} the fit says {number(other.value)} ({number(other.low)} to "
        f"{number(other.high)}), and the weighed "
        f"noise scale is {weighed / other.value:.2f} times that: which sizes are tried matters more than the interval "
        "says. So the noise scale tells the order of magnitude, from one run of four small workers instead of "
        f"{sum(run['kind'] == 'averaged' for run in RUNS)} runs: to plan by, not to set."
    )


def figure():
    return (
        f"![Steps to the target over the batch size, both logarithmic, with the curve through them. The critical batch "
        f"size is {number(CRITICAL.value)}; the noise scale over the training is "
        f"{number(median(map(over_training, LISTENED)))}.](critical-batch.svg)"
    )


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 62, 16, 30, 44
INK, QUIET, BLUE, ORANGE = "#222222", "#767676", "#0072b2", "#d55e00"


def picture():
    low_x, high_x = min(STEPS) / 1.5, max(STEPS) * 1.5
    taken = {batch: [run["steps"] for run in averaged(batch)] for batch in STEPS}
    low_y, high_y = min(map(min, taken.values())) / 1.5, max(map(max, taken.values())) * 1.5

    def x(batch):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(batch / low_x) / math.log(high_x / low_x)

    def y(steps):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(steps / low_y) / math.log(high_y / low_y)

    def band(low, high, colour):
        left, right = (x(min(max(end, low_x), high_x)) for end in (low, high))
        shape = f'x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
        return f'<rect {shape} fill="{colour}" opacity="0.15"/>'

    def text(at_x, at_y, words, anchor="middle", colour=INK, size=11):
        place = f'x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}"'
        return f'<text {place} fill="{colour}" font-size="{size}" font-family="sans-serif">{words}</text>'

    averages = [over_training(run) for run in LISTENED]
    curve = " ".join(
        f"{x(b):.1f},{y(CRITICAL.steps(b)):.1f}" for b in (low_x * 1.05**n for n in range(500)) if b < high_x
    )
    powers = [10**power for power in range(math.ceil(math.log10(low_y)), math.floor(math.log10(high_y)) + 1)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        band(CRITICAL.low, CRITICAL.high, BLUE),
        band(min(averages), max(averages), ORANGE),
        f'<polyline points="{curve}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>',
        *(
            f'<circle cx="{x(batch):.1f}" cy="{y(steps):.1f}" r="3" fill="{INK}"/>'
            for batch, all_steps in taken.items()
            for steps in all_steps
        ),
        *(text(x(batch), HEIGHT - BOTTOM + 16, f"{batch:,}", colour=QUIET) for batch in STEPS),
        *(text(LEFT - 6, y(power) + 4, f"{power:,}", "end", QUIET) for power in powers),
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="{QUIET}"/>',
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "batch size, samples"),
        text(LEFT, 14, "steps to the target", "start"),
        text(WIDTH - RIGHT, 14, f"critical batch size {number(CRITICAL.value)}", "end", BLUE),
        text(WIDTH - RIGHT, 27, f"noise scale over the training {spread(averages)}", "end", ORANGE),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


PARTS = {
    "made": made,
    "answer": answer,
    "figure": figure,
    "sizes": sizes,
    "noise": noise,
    "stretches": stretches,
    "filters": filters,
}


if __name__ == "__main__":
    write(PAGE, PARTS)
    PICTURE.write_text(picture())
