"""Pages of experiments are made from their runs, whatever came out."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from unisono.lab.experiments.gaf.plan import full_table

DOCS = Path(__file__).parents[2] / "docs"


def invented(plan, final):
    curve = [final * place / 29 for place in range(30)]
    constants = {"skipped": 0.25, "device": "a GPU", "torch": "2.13.0", "tuning_accuracy": 0.5, "best": final + 0.01}
    curves = {
        "test": curve,
        "train": curve,
        "memorised": curve,
        "cosine": curve[::-1],
        "noise_scale": [None, *[5.0] * 29],
    }
    return replace(plan, learning_rate=0.01).fields() | constants | curves | {"final": final}


@pytest.fixture
def copied(tmp_path):
    (tmp_path / "experiments").mkdir()
    for name in ("experiments/gaf.py", "experiments/gaf.md", "evidence/marked.py", "evidence/looks.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(DOCS / name, tmp_path / name)
    return tmp_path / "experiments"


def page_of(folder, runs):
    (folder / "gaf.json").write_text(json.dumps(runs))
    subprocess.run([sys.executable, folder / "gaf.py"], check=True)
    return (folder / "gaf.md").read_text()


def test_a_full_table_has_no_gaps_and_its_own_figures(copied):
    plans = full_table().wanted
    runs = [invented(plan, 0.3 + 0.02 * plan.seed + 0.1 * (plan.method == "published")) for plan in plans]
    page = page_of(copied, runs)
    assert "not run yet" not in page
    assert "Unfinished" not in page
    assert "32.0 (30.0 to 34.0); best 33.0" in page
    assert "| published, tau 0.97 | +10.0 ± 0.0 | +10.0 | +10.0 ± 0.0 | +10.0 ± 0.0 | +10.0 |" in page
    assert "| averaging-128 | +0.0 ± 0.0 |" in page
    assert "<svg" in (copied / "gaf-over-training.svg").read_text()


def test_what_was_not_run_is_said(copied):
    page = page_of(copied, [invented(full_table().wanted[0], 0.5)])
    assert f"**Unfinished.** 1 of {len(full_table().wanted)} runs" in page
    assert page.count("50.0; best 51.0") == 1
    assert page.count("not run yet") > 50


def test_tuning_is_no_result(copied):
    tuning = invented(replace(full_table().wanted[0], purpose="tuning"), 0.5)
    assert "50.0; best" not in page_of(copied, [tuning])
