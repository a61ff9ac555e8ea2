"""Pages that lead somewhere, and figures that were measured."""

import importlib
import json
import re
import runpy
from pathlib import Path

import pytest

import unisono

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/experiments/*.md")])
EVIDENCE = ROOT / "docs" / "evidence"
EXPERIMENTS = ROOT / "docs" / "experiments"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_names_commands_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_one_version_everywhere():
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    citation = dict(re.findall(r"^(version|date-released): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    newest = re.search(r"^## (\S+) - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert {project[1], citation["version"], newest[1]} == {unisono.__version__}
    assert newest[2] == citation["date-released"]


def test_claimed_versions_are_tried_by_the_workflow():
    yaml = pytest.importorskip("yaml", reason="PyYAML, which reads the workflow, is not installed")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    tried = workflow["jobs"]["test"]["strategy"]["matrix"]["include"]
    claimed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert {row["python"] for row in tried} == set(claimed)
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert {row["python"] for row in tried if row["torch"] == pinned} == set(claimed)


def test_the_issue_form_asks_for_the_diagnosis():
    yaml = pytest.importorskip("yaml", reason="PyYAML, which reads the form, is not installed")
    fields = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "finding.yml").read_text())["body"]
    asked = {field["id"]: field for field in fields if field["type"] != "markdown"}
    assert "`unisono diagnose RUN --markdown`" in asked["diagnosis"]["attributes"]["description"]
    required = {name for name, field in asked.items() if field.get("validations", {}).get("required")}
    assert required == {"diagnosis", "expected", "version", "launcher"}


def test_figures_are_those_of_the_evidence():
    page = (ROOT / "docs" / "performance.md").read_text()
    listening = json.loads((EVIDENCE / "listening_cost.json").read_text())
    for share in (listening["share_of_closely_heard_steps"], listening["share_of_run"]):
        assert f"{100 * share:.2f} %" in page
    assert f"{listening['milliseconds_per_reading']:.1f} ms" in page
    assert f"{listening['milliseconds_per_step']:.0f} ms" in page
    assert listening["command"] in page
    for small in json.loads((EVIDENCE / "listening_cost_small.json").read_text()).values():
        assert f"{100 * small['share_of_run']:.1f} %" in page
        assert f"{small['command']}\n" in page


@pytest.mark.parametrize("name", ["detection", "guard", "performance", "scale", "steering"])
def test_rendered_figures_are_those_of_the_evidence(name, monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE)
    page = (ROOT / "docs" / f"{name}.md").read_text()
    parts = runpy.run_path(str(EVIDENCE / f"{name}.py"))["PARTS"]
    assert importlib.import_module("marked").rendered(page, parts) == page, f"run docs/evidence/{name}.py"


@pytest.mark.parametrize("name", ["critical-batch", "gaf", "silent-inconsistency"])
def test_tables_of_experiments_are_those_of_their_runs(name, monkeypatch):
    monkeypatch.syspath_prepend(EVIDENCE)
    page = (EXPERIMENTS / f"{name}.md").read_text()
    script = f"{name.replace('-', '_')}.py"
    parts = runpy.run_path(str(EXPERIMENTS / script))["PARTS"]
    assert importlib.import_module("marked").rendered(page, parts) == page, f"run docs/experiments/{script}"


@pytest.fixture
def critical_batch(tmp_path, monkeypatch):
    """The script and its runs in a folder of their own, to be spoilt."""
    monkeypatch.syspath_prepend(EVIDENCE)
    for name in ("critical_batch.py", "critical-batch.json"):
        (tmp_path / name).write_bytes((EXPERIMENTS / name).read_bytes())
    return tmp_path


def test_the_picture_of_the_batch_sizes_is_that_of_the_runs(critical_batch):
    made = runpy.run_path(str(critical_batch / "critical_batch.py"))
    assert made["picture"]() == (EXPERIMENTS / "critical-batch.svg").read_text()


def test_results_of_batch_sizes_stand_only_where_the_runs_put_them(critical_batch):
    made = runpy.run_path(str(critical_batch / "critical_batch.py"))
    page = (EXPERIMENTS / "critical-batch.md").read_text()
    written = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", page, flags=re.DOTALL)
    results = [made["CRITICAL"].value, made["CRITICAL"].fewest_steps, *made["STEPS"].values()]
    results += [value(run) for run in made["LISTENED"] for value in (made["start"], made["end"], made["over_training"])]
    assert [number for number in map(made["number"], results) if number in written] == []


@pytest.mark.parametrize(("kind", "field"), [("averaged", "steps"), ("filtered", "skipped"), ("listened", "scaling")])
def test_other_runs_give_another_page_of_batch_sizes(critical_batch, kind, field):
    """Whatever is told comes from the runs."""
    before = runpy.run_path(str(critical_batch / "critical_batch.py"))
    path = critical_batch / "critical-batch.json"
    runs = json.loads(path.read_text())
    for run in runs:
        if run["kind"] == kind and run["seed"] != 0:
            run[field] = {"value": 7.0, "low": 6.0, "high": 8.0} if field == "scaling" else 2 * run[field] + 1
    path.write_text(json.dumps(runs))
    after = runpy.run_path(str(critical_batch / "critical_batch.py"))
    assert before["answer"]() != after["answer"]()


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
