"""The manuals' cases in real processes: found by the manual's name, and their healthy look-alikes in silence.

`make soak PART=manuals` runs all seeds, and writes what was found where docs/detection.md takes it from.
"""

import json
from pathlib import Path

import pytest
from benchmarks.detection.manual_cases import SEEDS, enter, train

from unisono.cli.commands.smoke import STEPS
from unisono.common.errors import UserError
from unisono.lab.manuals import CASES, ordered
from unisono.lab.manuals.case import CaseOrder

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence" / "manual_cases.json"
cases = pytest.mark.parametrize("slug", CASES)
IN_SOAK_ALONE = {
    "copies-of-one-stream",
    "copies-in-one-order",
    "walk-of-sources",
    "vanishing-after-learning",
    "vanishing-in-one-layer",
    "vanishing-exactly-zero",
    "oscillation-by-small-batches",
    "vanishing-nothing-to-learn",
    "preprocessed-differently",
}
"""Further jobs of a pattern of which another one is here."""


@pytest.mark.slow
@pytest.mark.parametrize("slug", [slug for slug in CASES if slug not in IN_SOAK_ALONE])
def test_a_case_is_found_and_its_look_alike_is_left_in_peace(slug, tmp_path):
    orders = [CaseOrder(CASES[slug], SEEDS[0], look_alike) for look_alike in (False, True)]
    rows = train(orders, tmp_path)
    assert [row["wrong"] for row in rows] == ["", ""], json.dumps(rows, indent=1)
    assert CASES[slug].code != "UN101" or rows[0]["told_at"] < STEPS, "`unisono smoke` would not have seen it"


@pytest.mark.soak("manuals")
@pytest.mark.parametrize("kind", ["case", "look-alike"])
@pytest.mark.parametrize("seed", SEEDS)
@cases
def test_with_this_seed(slug, seed, kind, tmp_path):
    (row,) = train([CaseOrder(CASES[slug], seed, kind == "look-alike")], tmp_path)
    enter(row, EVIDENCE)
    assert row["wrong"] == "", json.dumps(row, indent=1)


def test_every_pattern_has_a_case_that_is_always_run():
    patterns = [{case.pattern for slug, case in CASES.items() if slug not in left} for left in (IN_SOAK_ALONE, set())]
    assert patterns[0] == patterns[1]


@pytest.mark.parametrize("look_alike", [False, True])
@cases
def test_an_order_reads_as_it_is_written(slug, look_alike):
    order = CaseOrder(CASES[slug], 7, look_alike)
    assert ordered(str(order)) == order


@pytest.mark.parametrize("text", ["nothing:1", "single-point-anomaly", "single-point-anomaly:1:healthy"])
def test_an_order_that_cannot_be_read(text):
    with pytest.raises(UserError, match="A case should be SLUG:SEED"):
        ordered(text)
