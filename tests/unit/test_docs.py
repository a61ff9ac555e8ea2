"""Pages that lead somewhere, and figures that were measured."""

import json
import re
import runpy
from pathlib import Path

import pytest

from unisono.lab.results import as_text, load

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
EVIDENCE = ROOT / "docs" / "evidence"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_names_commands_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_figures_are_those_of_the_evidence():
    page = (ROOT / "docs" / "performance.md").read_text()
    listening = json.loads((EVIDENCE / "listening_cost.json").read_text())
    for share in (listening["share_of_first_500_steps"], listening["share_of_run"]):
        assert f"{100 * share:.2f} %" in page
    assert f"{listening['milliseconds_per_reading']:.1f} ms" in page
    assert f"{listening['milliseconds_per_step']:.0f} ms" in page
    assert listening["command"] in page


def test_the_figures_on_performance_are_those_of_the_evidence():
    page = (ROOT / "docs" / "performance.md").read_text()
    script = runpy.run_path(str(EVIDENCE / "performance.py"))
    assert all(f"<!-- {name} -->" in page for name in script["PARTS"])
    assert script["rendered"](page) == page, "run docs/evidence/performance.py"


def test_the_speed_of_the_report_is_that_of_the_evidence():
    page = (ROOT / "docs" / "page.md").read_text()
    speed = json.loads((EVIDENCE / "report_speed.json").read_text())
    assert speed["command"] in page
    for found in speed["results"]:
        made, view = f"{found['seconds_to_make']:.1f} s", f"{found['seconds_to_first_view']:.1f} s"
        figures = f"{made} | {found['megabytes_of_page']:.1f} MB | {view}"
        assert re.search(
            rf"{found['records']:,} records, {found['workers']:,} workers,.* \| {re.escape(figures)}", page
        )


def test_the_results_of_the_detection_benchmark_are_those_of_the_evidence():
    page, tally = (ROOT / "docs" / "detection.md").read_text(), load(EVIDENCE)
    script = runpy.run_path(str(EVIDENCE / "detection.py"))
    assert f"```\n{as_text(tally)}\n```" in page
    assert script["rendered"](page, tally) == page, "run docs/evidence/detection.py"


def test_the_tables_on_steering_are_those_of_the_evidence():
    page = (ROOT / "docs" / "steering.md").read_text()
    assert runpy.run_path(str(EVIDENCE / "steering.py"))["rendered"](page) == page, "run docs/evidence/steering.py"


def test_the_figures_on_the_guard_are_those_of_the_evidence():
    page = (ROOT / "docs" / "guard.md").read_text()
    assert runpy.run_path(str(EVIDENCE / "guard.py"))["rendered"](page) == page, "run docs/evidence/guard.py"


def test_the_tables_on_scale_are_those_of_the_evidence():
    page = (ROOT / "docs" / "scale.md").read_text()
    assert runpy.run_path(str(EVIDENCE / "scale.py"))["rendered"](page) == page, "run docs/evidence/scale.py"
