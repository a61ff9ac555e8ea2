"""The answer as a table and in words."""

from __future__ import annotations

from unisono.common.terminal import lines_of, table
from unisono.diagnose.rules.shared.run_state import spoken
from unisono.lab.whatif.answer import ENOUGH, KEPT, LEFT_OUT, SKIPPED, Named, WhatIfAnswer, keep_rate
from unisono.lab.whatif.question import written
from unisono.lab.whatif.replay import GridRow

LAST_COLUMN = 24
LEGEND = """\
kept: share of the workers, at steps that are not skipped
skipped: steps at which no two would have agreed
effective: how many equal workers the update is worth
cosine: of the update with the plain mean of all workers"""
CAUTION = (
    "Nothing was trained for this: had the weighting been on, later steps would have differed from the recorded ones. "
    "Workers usually agree less as training goes on, so leave some room."
)


def as_text(answer: WhatIfAnswer, width: int) -> str:
    head = (answer.question.option, "kept", "skipped", "effective", "cosine", "most rejected")
    rows = table([head, *(_row(answer, row) for row in answer.rows)], ">>>>><", [12, 6, 14, 9, 6, LAST_COLUMN])
    words = [advice(answer), *(_about(one, answer) for one in answer.named), CAUTION]
    parts = [lines_of(_headline(answer), width), rows, LEGEND.splitlines(), *(lines_of(one, width) for one in words)]
    return "\n\n".join("\n".join(part) for part in [*parts, _next(answer)])


def advice(answer: WhatIfAnswer) -> str:
    """What the table says of healthy workers; careful where it says little."""
    option, others = answer.question.option, "other workers" if answer.named else "workers"
    if answer.readings < ENOUGH:
        return f"Too few readings to recommend a value: it takes {ENOUGH}."
    mild = f"keeps at least {_percent(KEPT)} of the {others} and skips less than {_percent(SKIPPED)} of the steps"
    if answer.recommended is None:
        return f"No value is recommended: none of these {mild}. Workers agree too little at single steps for that."
    return f"The strictest of these that {mild}: {option}={written(answer.recommended)}."


def _headline(answer: WhatIfAnswer) -> str:
    readings = f"{answer.readings:,} reading{'s' * (answer.readings != 1)} of {answer.steps:,} steps"
    asked = f"What `{answer.question.weighting.name}` would have done with {answer.workers} workers"
    return f"{asked} in {readings}, between steps {answer.first_step:,} and {answer.last_step:,}:"


def _row(answer: WhatIfAnswer, row: GridRow) -> tuple[str, ...]:
    kept, effective = keep_rate(row), row.effective_workers
    rejected = answer.most_rejected(row)
    return (
        written(row.value),
        "-" if kept is None else _percent(kept),
        f"{row.skipped:,} ({_percent(row.skipped / answer.readings)})",
        "-" if effective is None else f"{effective:.2f}",
        "-" if row.cosine is None else f"{row.cosine:.3f}",
        "-" if rejected is None else f"rank {rejected[0]} ({_percent(rejected[1])})",
    )


def _about(named: Named, answer: WhatIfAnswer) -> str:
    who = f"{named.code} names {spoken(named.ranks)}, since step {named.first_step:,}."
    them = "it" if len(named.ranks) == 1 else "them"
    if named.value is None or named.rate is None:
        return f"{who} None of these would have left {them} out of {_percent(LEFT_OUT)} of the steps."
    value = f"{answer.question.option}={written(named.value)}, in {_percent(named.rate)} of the steps"
    return f"{who} The mildest of these that would have left {them} out: {value}."


def _next(answer: WhatIfAnswer) -> list[str]:
    lines = [f"Mend the fault first: unisono diagnose {answer.path}"] if answer.named else []
    value = answer.worth_a_try
    if value is not None:
        return [*lines, f"Try it with: unisono run --weighting {answer.question.text(value)} -- CMD..."]
    if answer.readings < ENOUGH:
        return [*lines, "Record more with: unisono run --every 1 -- CMD..."]
    if answer.question.weighting.name == "agreement":
        return [*lines, f"See what following the noise does: unisono lab whatif {answer.path} --weighting adaptive"]
    return [
        *lines,
        "Sums over many steps may tell more; try and compare: unisono run --weighting agreement:window=32 -- CMD...",
    ]


def _percent(share: float) -> str:
    """Only all is 100 %, and only nothing is 0 %."""
    near_an_end = 0 < share < 0.01 or 0.99 < share < 1
    return f"{min(99.9, max(0.1, 100 * share)):.1f} %" if near_an_end else f"{100 * share:.0f} %"
