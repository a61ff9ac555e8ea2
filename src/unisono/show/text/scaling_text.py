"""The outlook in words, as a table and as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unisono.common.terminal import lines_of, table
from unisono.records.finding import Finding
from unisono.show.analysis.lost_work import Loss, spoken_time
from unisono.show.analysis.scaling import TIMES, Estimate, Outlook

WORTH_IT, WORTH_LITTLE = 0.6, 0.8
"""Steps that twice the workers need: half of those of now would be perfect, all of them would be for nothing."""

ASSUMED = (
    "To be read as an order of magnitude, and for now: the noise scale usually grows in training. Taken for granted: "
    "the same batch per worker, steps that last as long as now, a learning rate tuned to the larger batch."
)
EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR = 16
LABEL = 22
TIED = "\N{NO-BREAK SPACE}"
"""Where a line should not break; printed as a plain space."""


def as_text(outlook: Outlook, width: int = 80) -> str:
    parts = [
        lines_of(verdict(outlook), width),
        [line for label, text in _facts(outlook) for line in _labelled(label, text, width)],
        _table(outlook),
        _bars(outlook),
        lines_of(ASSUMED, width),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts).replace(TIED, " ")


def verdict(outlook: Outlook) -> str:
    """One sentence; where the interval leaves room for everything, it says so."""
    steps, time = outlook.steps(2 * outlook.workers), outlook.worker_time(2 * outlook.workers)
    is_open = steps.low <= WORTH_IT and steps.high > WORTH_LITTLE
    opinion = "Too noisy to say whether more workers pay" if is_open else _worth(steps.value)
    return (
        f"{opinion}: twice as many would need {_percent(steps)} of the steps and {_percent(time)} of the worker-time."
    )


def caution(found: Outlook, findings: Sequence[Finding]) -> list[str]:
    """Where a fault was there while it was measured."""
    begun = [one for one in findings if one.at_least("warning") and one.first_step <= found.last_step]
    codes = [one.code for one in begun if one.state == "open" or one.last_step >= found.first_step]
    told = "was measured with a fault in the run, and may be different without it"
    return [f"With care: this {told} ({', '.join(codes)})."] if codes else []


def lost_as_text(losses: Sequence[Loss], width: int = 80) -> str:
    """A line for each finding, the time since the earliest one first."""
    return "\n".join(line for loss in losses for line in lines_of(_lost(loss), width, rest="  "))


def _worth(steps: float) -> str:
    if steps <= WORTH_IT:
        return "More workers pay"
    return "More workers help, at a price" if steps <= WORTH_LITTLE else "More workers bring little"


def _facts(outlook: Outlook) -> list[tuple[str, str]]:
    now, batch = outlook.workers, outlook.samples
    critical = outlook.critical_batch
    facts = [("noise scale", f"{_range(outlook.noise_scale)} batches of one worker")]
    if critical is not None and batch is not None:
        facts.append(("critical batch size", f"{_range(critical)} samples; the batch is {_number(batch * now)} now"))
    if outlook.readings_wanted:
        wanted = _number(float(f"{outlook.readings_wanted:.2g}"))
        facts.append(("", f"too noisy for an upper end: it takes about {wanted} readings, not {outlook.readings:,}"))
    facts.append(("effective workers", f"{_range(outlook.effective_workers(now))} of {now}"))
    steps = f"steps {outlook.first_step:,} to {outlook.last_step:,}"
    facts.append(("measured", f"in {outlook.readings:,} readings, {steps}; in brackets: intervals of 90{TIED}%"))
    return facts


def _labelled(label: str, text: str, width: int) -> list[str]:
    return lines_of(text, width, first=f"{label:<{LABEL}}", rest=" " * LABEL)


def _table(outlook: Outlook) -> list[str]:
    rows: list[tuple[object, ...]] = [("", "workers", "batch", "steps needed", "worker-time")]
    for times in TIMES:
        workers = times * outlook.workers
        batch = "-" if outlook.samples is None else _number(outlook.samples * workers)
        name = "now" if times == 1 else f"{times}x"
        cells = (_percent(outlook.steps(workers)), _percent(outlook.worker_time(workers)))
        rows.append((name, workers, batch, *cells))
    return table(rows, ">>><<", [5, 8, 10, 22, 22])


def _bars(outlook: Outlook) -> list[str]:
    """The critical size has a row of its own, in its place between the others."""
    rows = {float(times * outlook.workers): "now" if times == 1 else "" for times in TIMES}
    critical = outlook.noise_scale.value
    if 1 <= critical < math.inf:
        rows |= {critical: "critical batch size"}
    longest = outlook.steps(min(rows)).value
    lines = [f"{'workers':>8}  {'steps needed':<{BAR + 9}}efficiency"]
    for workers, remark in sorted(rows.items()):
        steps, efficiency = outlook.steps(workers).value, outlook.efficiency(workers).value
        bars = f"{_bar(steps / longest)} {_share(steps):>6}  {_bar(efficiency)} {_share(efficiency):>6}"
        lines.append(f"{_number(workers):>8}  {bars}  {remark}".rstrip())
    return lines


def _bar(share: float) -> str:
    eighths = round(8 * BAR * share)
    return f"{EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip():<{BAR}}"


def _lost(loss: Loss) -> str:
    spent = "" if loss.worker_seconds is None else f"{spoken_time(loss.worker_seconds)}, "
    return f"{loss.code}, steps {loss.first_step:,} to {loss.last_step:,}: {spent}{loss.words}"


def _range(estimate: Estimate) -> str:
    """`37 (29 to 51)`, `37 (29 or more)`, `29 or more`, `4` where the interval is that narrow."""
    value, low, high = map(_number, (estimate.value, estimate.low, estimate.high))
    if math.isinf(estimate.value):
        return f"{low} or more"
    if low == high:
        return value
    return f"{value} ({low} or more)" if math.isinf(estimate.high) else f"{value} ({low} to {high})"


def _percent(estimate: Estimate) -> str:
    low, high = _share(estimate.low), _share(estimate.high)
    return _share(estimate.value) + (f" ({low[:-2]} to {high[:-2]})" if low != high else "")


def _share(value: float) -> str:
    return f"{100 * value:.0f}{TIED}%"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
