"""The benchmark's results as two pictures: how soon each fault is found, and what is said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.detection.results import GOALS
from benchmarks.detection.tally import FaultRow, Tally, Verdict, verdicts

from unisono.diagnose.rules import RULES
from unisono.lab.faults.catalogue import EXACT, FAULTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DELAYS, CONFUSION = "delays.svg", "confusion.svg"
FOUND, MISSED, INK, QUIET = "#0072b2", "#d55e00", "#222222", "#767676"
"""Told apart by colour-blind people too."""

SETTINGS: Any = {
    "svg.hashsalt": "unisono",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
}
SAVED: Any = {"format": "svg", "facecolor": "white", "metadata": {"Date": None}, "bbox_inches": "tight"}
KINDS = {
    (False, "every step"): "",
    (False, "default, from step 200"): "default schedule, from 200",
    (False, "default, from step 700"): "default schedule, from 700",
    (True, "every step"): "real processes",
}
CELLS: Any = {"cmap": "Blues", "vmin": 0, "vmax": 1.2, "edgecolors": "white", "linewidth": 1}
NOTHING = "-"
TITLES = {rule.code: f"{rule.code} {rule.slug}" for rule in RULES} | {NOTHING: "nothing"}
TICKS = (1, 3, 10, 30, 100, 300, 1000)
FURTHEST = 2000
SPREAD = 0.6
"""Height over which the dots of one line are spread."""

GOLDEN = 0.618034
"""Multiples of it, without their whole part, fill a stretch evenly."""


@dataclass(frozen=True)
class Line:
    """A fault in one kind of runs; without a verdict, the heading of a group."""

    name: str
    verdict: Verdict | None = None
    readings: tuple[int, ...] = ()


@dataclass(frozen=True)
class Said:
    """The share of a fault's runs in which each code was said, and which of them are right."""

    name: str
    shares: dict[str, float]
    right: tuple[str, ...]


def draw(tally: Tally, folder: Path) -> list[str]:
    """The names of the files written: none without matplotlib, or where no fault was tried."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return []
    if not tally.faults:
        return []
    with mpl.rc_context(SETTINGS):
        for name, draw_one in ((DELAYS, _delays), (CONFUSION, _confusion)):
            figure = Figure()
            draw_one(figure, tally)
            figure.savefig(folder / name, **SAVED)
    return [DELAYS, CONFUSION]


def _group(fault: str) -> str:
    if fault in EXACT:
        return "told by exact evidence"
    if FAULTS[fault].on == "nobody" and not FAULTS[fault].harmless:
        return "all workers"
    return "one worker's data" if FAULTS[fault].code in ("UN104", "UN105") else "one worker's computation"


def _lines(rows: Sequence[FaultRow]) -> Iterator[Line]:
    faults = sorted({row.fault for row in rows}, key=list(FAULTS).index)
    for group in sorted({_group(fault) for fault in faults}, key=lambda group: (group[:3] != "one", group)):
        yield Line(group)
        for fault in faults:
            if _group(fault) == group:
                yield from _lines_of(fault, [row for row in rows if row.fault == fault])


def _lines_of(fault: str, rows: Sequence[FaultRow]) -> Iterator[Line]:
    name = fault
    for kind, title in KINDS.items():
        own = [row for row in rows if (row.real, row.schedule) == kind]
        if own:
            readings = sorted(number for row in own for number in row.readings)
            yield Line(f"{name} {title}".strip(), verdicts(own, GOALS)[0], tuple(readings))
            name = ""


def _delays(figure: Figure, tally: Tally) -> None:
    lines = list(_lines(tally.faults))
    figure.set_size_inches(10, 1 + 0.21 * len(lines))
    dots, missed, words = figure.subplots(
        1, 3, sharey=True, gridspec_kw={"width_ratios": [6, 0.9, 3.3], "wspace": 0.03}
    )
    for height, line in enumerate(lines):
        dots.annotate(line.name, (0, height), (-6, 0), ha="right", va="center", **_look(line), **_beside(dots))
        if line.verdict is None:
            continue
        _delays_of(dots, line, line.verdict, height)
        _share_missed(missed, line.verdict, height)
        for column, text in enumerate(_told(line.verdict)):
            words.text(column, height, text, va="center", ha="center")
    _dress_delays(dots, missed, words, len(lines))


def _beside(axes: Axes) -> dict[str, Any]:
    """Arguments of a text at a height of the data, beside the axes."""
    return {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}


def _look(line: Line) -> dict[str, Any]:
    if line.verdict is None:
        return {"fontweight": "bold"}
    return {"color": QUIET} if line.name in KINDS.values() else {}


def _delays_of(axes: Axes, line: Line, verdict: Verdict, height: int) -> None:
    axes.axhline(height, color="#e6e6e6", linewidth=0.6, zorder=0)
    heights = [height + SPREAD * ((GOLDEN * number) % 1 - 0.5) for number in range(len(line.readings))]
    places = [max(1, readings) for readings in line.readings]
    axes.scatter(places, heights, s=11, color=FOUND, alpha=0.35, linewidths=0)
    if verdict.median is not None:
        axes.plot(max(1, verdict.median), height, "|", color=INK, markersize=11, markeredgewidth=2)
    if line.name in GOALS:
        axes.plot(GOALS[line.name], height, "D", color=MISSED, fillstyle="none", markersize=5)


def _share_missed(axes: Axes, verdict: Verdict, height: int) -> None:
    share = 0.0 if FAULTS[verdict.fault].harmless else 1 - verdict.found / verdict.runs
    axes.barh(height, share, 0.6, color=MISSED)
    if share:
        axes.annotate(f"{share:.0%}", (share, height), (2, 0), textcoords="offset points", va="center", fontsize=8)


def _told(verdict: Verdict) -> tuple[str, str, str]:
    if FAULTS[verdict.fault].harmless:
        return f"silent {verdict.said.get(NOTHING, 0)}/{verdict.runs}", "", ""
    ranks = f"{verdict.right_ranks}/{verdict.named}" if verdict.named else ""
    return f"{verdict.found}/{verdict.runs}", ranks, f"{verdict.right_causes}/{verdict.found}" if verdict.found else ""


def _dress_delays(dots: Axes, missed: Axes, words: Axes, lines: int) -> None:
    dots.set_ylim(lines - 0.4, -0.6)
    dots.set_yticks([])
    dots.set_xscale("log")
    dots.set_xlim(0.8, FURTHEST)
    dots.set_xticks(TICKS, ["\N{LESS-THAN OR EQUAL TO} 1", *[f"{tick:,}" for tick in TICKS[1:]]])
    dots.minorticks_off()
    dots.set_xlabel("readings from the first faulty step to the finding")
    dots.plot([], [], "o", color=FOUND, alpha=0.5, markersize=4, label="a run")
    dots.plot([], [], "|", color=INK, markersize=10, markeredgewidth=2, label="median")
    dots.plot([], [], "D", color=MISSED, fillstyle="none", markersize=5, label="goal")
    dots.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
    missed.set_xlim(0, 1.7)
    missed.set_xticks([])
    missed.set_title("not found", fontsize=9)
    words.set_xlim(-0.6, 2.6)
    words.set_xticks([])
    words.set_xlabel("ranks: of three or more workers")
    for column, title in enumerate(("found", "right rank", "right cause")):
        words.annotate(
            title, (column, 1), (0, 6), xycoords=words.get_xaxis_transform(), textcoords="offset points", ha="center"
        )
    for axes in (dots, missed, words):
        axes.spines[:].set_visible(axes is dots)
    dots.spines[["top", "right"]].set_visible(False)


def _said(tally: Tally) -> list[Said]:
    rows = []
    for one in sorted(verdicts(tally.faults, GOALS), key=lambda one: list(FAULTS).index(one.fault)):
        fault = FAULTS[one.fault]
        shares = {code: runs / one.runs for code, runs in one.said.items()}
        rows.append(Said(one.fault, shares, (NOTHING,) if fault.harmless else (fault.code, *fault.also)))
    runs = sum(row.runs for row in tally.healthy)
    if runs:
        told: Counter[str] = sum((Counter(row.said) for row in tally.healthy), Counter())
        shares = {code: count / runs for code, count in told.items()}
        rows.append(Said("nothing (healthy)", shares | {NOTHING: max(0.0, 1 - sum(shares.values()))}, (NOTHING,)))
    return rows


def _confusion(figure: Figure, tally: Tally) -> None:
    rows = _said(tally)
    codes = [*sorted({code for row in rows for code in (*row.shares, *row.right)} - {NOTHING}), NOTHING]
    figure.set_size_inches(1 + 0.5 * len(codes), 1 + 0.23 * len(rows))
    axes = figure.subplots()
    shares = [[row.shares.get(code, 0.0) for code in codes] for row in rows]
    axes.pcolormesh(range(len(codes)), range(len(rows)), shares, shading="nearest", **CELLS)
    axes.invert_yaxis()
    for height, row in enumerate(rows):
        for column, code in enumerate(codes):
            _cell(axes, (column, height), row.shares.get(code, 0.0), code in row.right)
    axes.set_xticks(range(len(codes)), [TITLES[code] for code in codes], rotation=40, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("% of runs; where the right finding (framed) was not said, the first one")


def _cell(axes: Axes, place: tuple[int, int], share: float, right: bool) -> None:
    from matplotlib.patches import Rectangle

    if share:
        number = "<1" if share < 0.01 else ">99" if 0.99 < share < 1 else f"{100 * share:.0f}"
        axes.text(*place, number, ha="center", va="center", color="white" if share > 0.6 else INK)
    if right:
        column, height = place
        frame = Rectangle((column - 0.46, height - 0.44), 0.92, 0.88, fill=False, edgecolor=INK, linewidth=0.9)
        axes.add_patch(frame)
