"""How long `unisono report` takes, how large the page is, and how soon a browser shows it.

python benchmarks/report_speed.py [--short] [--json FILE]

The runs are invented: 100,000 records of 8 workers, of which every 20th is heard (as the default schedule does when a
reading costs a tenth of a step) or all are, and 2,000 records of 1,024 workers, all heard. The page is made by the
command itself, in a process of its own. A browser is used where chromium and playwright are there.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from diagnosis_speed import records

from unisono.records import to_line

SIZES = ((100_000, 8, 20), (100_000, 8, 1), (2_000, 1_024, 1))
SHORT_SIZES = ((5_000, 8, 1), (200, 1_024, 1))
GOALS = {"seconds_to_make": 10.0, "megabytes_of_page": 3.0, "seconds_to_first_view": 2.0}
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def measured(count: int, workers: int, every: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run, page = Path(folder) / "run.jsonl", Path(folder) / "page.html"
        with run.open("w", encoding="ascii") as file:
            file.writelines(to_line(record) + "\n" for record in records(count, every, workers))
        size = run.stat().st_size
        seconds, processor_seconds = make(run, page)
        result = {
            "records": count,
            "workers": workers,
            "heard_every": every,
            "megabytes_of_run": size / 1e6,
            "seconds_to_make": seconds,
            "processor_seconds_to_make": processor_seconds,
            "megabytes_of_page": page.stat().st_size / 1e6,
            "seconds_to_first_view": first_view(page),
        }
    return result | {"of_goal": {name: round(result[name] / goal, 2) for name, goal in GOALS.items() if result[name]}}


def make(run: Path, page: Path) -> tuple[float, float]:
    """Seconds on the wall, and those of the processor."""
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "unisono", "report", str(run), "-o", str(page)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def first_view(page: Path) -> float | None:
    """From opening the file to the moment when all charts are drawn; the browser has been started before."""
    if CHROMIUM is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1100, "height": 900}, locale="en-US")
        began = time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_selector("body[data-ready]")
        seconds = time.perf_counter() - began
        browser.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="where the result goes")
    options = parser.parse_args()
    sizes = SHORT_SIZES if options.short else SIZES
    result = {"command": " ".join(["python", *sys.argv]), "python": platform.python_version(), "goals": GOALS}
    result["results"] = [measured(*size) for size in sizes]
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
