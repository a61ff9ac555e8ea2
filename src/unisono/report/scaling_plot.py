"""The outlook as a picture: time and cost against the number of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.atomic import output_path, whole_file
from unisono.errors import UserError
from unisono.report.scaling import TIMES, Estimate, Outlook

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
COLOUR, CRITICAL, QUIET = "#0072b2", "#d55e00", "#767676"
"""Told apart by colour-blind people too."""

SETTINGS: Any = {
    "svg.hashsalt": "unisono",
    "svg.fonttype": "path",
    "font.family": "sans-serif",
    "font.size": 11,
}
BELOW: Any = {"textcoords": "offset points", "ha": "right", "va": "top", "color": QUIET, "fontsize": 9}
POINTS = 97
MARGIN = 1.4
FURTHEST = 32
"""Times the workers of now: a critical number beyond that is left out, so that the points have room."""


def check_target(target: str) -> None:
    """Raises `UserError` for what could not be drawn, before any work is done."""
    if Path(target).suffix.lower() not in FORMATS:
        raise UserError(f"A plot should be a .svg or .png file. Found `{target}`. Write: --plot scaling.svg")
    output_path(target)
    try:
        import matplotlib as mpl  # noqa: F401 (only whether it is there)
    except ImportError:
        raise UserError(
            "A plot requires ['matplotlib'] to be installed. Install it with: pip install \"unisono[plots]\""
        ) from None


def draw(outlook: Outlook, target: str) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    workers = _numbers_of_workers(outlook)
    with mpl.rc_context(SETTINGS), whole_file(target) as temporary:
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        time, cost = figure.subplots(1, 2)
        _curve(time, workers, outlook, outlook.steps, side="left")
        _curve(cost, workers, outlook, outlook.worker_time, side="right")
        _perfect(time, workers, outlook)
        cost.axhline(100, color=QUIET, linestyle="--", linewidth=1)
        _dress(time, workers, outlook, "time to the same loss")
        _dress(cost, workers, outlook, "time of all workers together")
        figure.savefig(temporary, dpi=150, facecolor="white", metadata=_metadata(target))


def _metadata(target: str) -> dict[str, Any] | None:
    """The same run should give the same file."""
    return {"Date": None} if Path(target).suffix.lower() == ".svg" else None


def _numbers_of_workers(outlook: Outlook) -> list[float]:
    """From those of now to eight times as many and a little more; around the critical number if that is near enough."""
    now, critical = outlook.workers, outlook.noise_scale.value
    first, last = float(now), MARGIN * max(TIMES) * now
    if 1 <= critical <= FURTHEST * now:
        first, last = max(1.0, min(first, critical / 2)), max(last, 2 * critical)
    return [first * (last / first) ** (point / (POINTS - 1)) for point in range(POINTS)]


def _curve(
    axes: Axes, workers: Sequence[float], outlook: Outlook, measure: Callable[[float], Estimate], side: str
) -> None:
    """The curve in its band, with a point for each row of the table.

    :param side: Of a point's name that faces the point: the side on which the curve lies lower.
    """
    estimates = [measure(number).through(_percent) for number in workers]
    low, high = [one.low for one in estimates], [one.high for one in estimates]
    axes.fill_between(workers, low, high, color=COLOUR, alpha=0.2, linewidth=0)
    axes.plot(workers, [one.value for one in estimates], color=COLOUR, linewidth=2)
    for times in TIMES:
        number = times * outlook.workers
        height = _percent(measure(number).value)
        axes.plot(number, height, "o", color=COLOUR, markersize=5)
        text = "now" if times == 1 else f"{height:.0f} %"
        place = (4, 6) if side == "left" else (-1, 6)
        axes.annotate(text, (number, height), place, textcoords="offset points", color=COLOUR, ha=side)


def _perfect(axes: Axes, workers: Sequence[float], outlook: Outlook) -> None:
    more = [number for number in workers if number >= outlook.workers]
    axes.plot(more, [_percent(outlook.workers / number) for number in more], color=QUIET, linestyle="--", linewidth=1)
    axes.annotate("if nothing\nwere lost", (1.5 * outlook.workers, _percent(1 / 1.5)), (-6, -6), **BELOW)


def _dress(axes: Axes, workers: Sequence[float], outlook: Outlook, title: str) -> None:
    _mark_critical(axes, workers, outlook)
    axes.set_title(title, loc="left", pad=22)
    axes.set_xlabel("workers, each with the batch it has now")
    axes.set_ylabel("% of now")
    axes.set_xscale("log", base=2)
    axes.set_xlim(workers[0] / MARGIN, workers[-1])
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])  # room for the name of the highest point
    ticks = [outlook.workers * 2.0**power for power in range(-20, 21)]
    ticks = [tick for tick in ticks if tick.is_integer() and workers[0] <= tick <= workers[-1]]
    axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)


def _mark_critical(axes: Axes, workers: Sequence[float], outlook: Outlook) -> None:
    """A line in the band of its interval; its name above, with an arrow where it lies outside the picture."""
    first, last, scale = workers[0], workers[-1], outlook.noise_scale
    name = f"critical batch size: {_critical_size(outlook)}"
    if first <= scale.value <= last:
        axes.axvspan(max(first, scale.low), min(last, scale.high), color=CRITICAL, alpha=0.12, linewidth=0)
        axes.axvline(scale.value, color=CRITICAL, linewidth=1.5)
    elif scale.value > last:
        name = f"{name} \N{RIGHTWARDS ARROW}"
    else:
        name = f"\N{LEFTWARDS ARROW} {name}"
    place = min(max(scale.value, first), last)
    side = "left" if place**2 < first * last else "right"
    axes.annotate(name, (place, 1.02), xycoords=axes.get_xaxis_transform(), color=CRITICAL, ha=side)


def _critical_size(outlook: Outlook) -> str:
    unit = "workers" if outlook.critical_batch is None else "samples"
    size = outlook.critical_batch or outlook.noise_scale
    number, more = (size.low, " or more") if math.isinf(size.value) else (size.value, "")
    return f"{number:,.0f} {unit}{more}" if number >= 10 else f"{number:.2g} {unit}{more}"


def _percent(share: float) -> float:
    return 100 * share
