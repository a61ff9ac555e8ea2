"""The manuals' own cases as real training jobs, each beside healthy training that looks like it."""

from __future__ import annotations

from unisono.common.errors import UserError
from unisono.lab.manuals import directions, duplicates, losses, norms, uneven
from unisono.lab.manuals.case import LOOK_ALIKE, CaseOrder, ManualCase

CASES: dict[str, ManualCase] = {
    case.slug: case for file in (directions, duplicates, losses, norms, uneven) for case in file.CASES
}


def ordered(text: str) -> CaseOrder:
    """An order as it is written: `SLUG:SEED` or `SLUG:SEED:look-alike`."""
    slug, _, rest = text.partition(":")
    seed, _, kind = rest.partition(":")
    if slug not in CASES or not seed.isdecimal() or kind not in ("", LOOK_ALIKE):
        raise UserError(f"A case should be SLUG:SEED[:{LOOK_ALIKE}], SLUG one of {', '.join(CASES)}. Found `{text}`.")
    return CaseOrder(CASES[slug], int(seed), bool(kind))
