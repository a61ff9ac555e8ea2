"""Runs the manuals' cases and writes down what was said of them, row by row; goes on where it was stopped.

python -m benchmarks.detection.manual_cases --json docs/evidence/manual_cases.json
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.detection.manuals import RULES, Manuals

from unisono.diagnose.engine import Diagnosis
from unisono.lab.manuals import CASES
from unisono.lab.manuals.case import CaseOrder, ManualCase
from unisono.records.finding import Finding
from unisono.records.runfile.reader import scan

SEEDS = (1, 2, 3, 4, 5)
"""The rules were fixed with others."""

Row = dict[str, Any]


def train(orders: list[CaseOrder], folder: Path) -> list[Row]:
    """In a process of its own, which forks the ranks: it must not have threads that compute."""
    command = [sys.executable, "-m", "unisono.lab.manuals.job", folder, *orders]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([str(part) for part in command], check=True, env=environment, stdin=subprocess.DEVNULL)
    return [row(order, folder / str(order)) for order in orders]


def row(order: CaseOrder, run: Path) -> Row:
    """What was said above a remark, and of the case itself from its own severity on; told again from the run's file."""
    diagnosis, manuals, told, steps = Diagnosis(), Manuals(), None, 0
    for _, record in scan(run):
        if record is None:
            continue
        diagnosis.see(record)
        if record.kind == "step":
            steps += 1
            manuals.see(record)
            if told is None and _right(order.case, diagnosis.findings()):
                told = record.step
    findings = diagnosis.findings()
    right = _right(order.case, findings)
    found: Row = {
        "case": order.case.slug,
        "code": order.case.code,
        "named": order.case.pattern,
        "seed": order.seed,
        "look_alike": order.look_alike,
        "steps": steps,
        "told_at": told,
        "first_step": None if right is None else right.first_step,
        "pattern": None if right is None else right.pattern,
        "cause": right.causes[0].slug if right is not None and right.causes else None,
        "findings": [f"{one.code} {one.severity}" for one in findings],
        "why": None if right is None else right.why,
        "alarms": manuals.alarms[order.case.pattern] if order.case.pattern in RULES else None,
    }
    return found | {"wrong": _wrong(order, found)}


def _right(case: ManualCase, findings: list[Finding]) -> Finding | None:
    return next((one for one in findings if one.code == case.code and one.at_least(case.severity)), None)


def _wrong(order: CaseOrder, found: Row) -> str:
    """What is wrong with what was said; empty if it is right."""
    case, grave = order.case, [one for one in found["findings"] if not one.endswith(" info")]
    if order.look_alike:
        # A remark may be right of both; what accuses is its cause.
        accused = case.severity == "info" and found["cause"] is not None and case.cause in ("", found["cause"])
        return f"found {grave or found['findings']} in healthy training" if grave or accused else ""
    if found["told_at"] is None:
        return f"found {found['findings']} instead of {case.code}"
    others = [one for one in grave if one.endswith(" critical") and not one.startswith(case.code)]
    if others:
        return f"found {others} beside {case.code}"
    if case.pattern not in (found["pattern"] or ""):
        return f"found the pattern {found['pattern']} instead of {case.pattern}"
    return f"found the cause {found['cause']} instead of {case.cause}" if case.cause not in ("", found["cause"]) else ""


def enter(row: Row, path: Path) -> None:
    """Into the file of all rows, in the place of an older one of the same job. Several processes may do so at once."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        rows = [] if not path.exists() else json.loads(path.read_text())["rows"]
        rows = [other for other in rows if _name(other) != _name(row)]
        content = {"command": "make soak PART=manuals", "rows": sorted([*rows, row], key=_name)}
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(content, indent=1) + "\n")
        draft.replace(path)
    finally:
        os.close(folder)


def _name(row: Row) -> tuple[str, int, bool]:
    return row["case"], row["seed"], row["look_alike"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    for slug in args.cases:
        orders = [CaseOrder(CASES[slug], seed, look_alike) for seed in args.seeds for look_alike in (False, True)]
        with tempfile.TemporaryDirectory() as folder:
            for found in train(orders, Path(folder)):
                what = found["wrong"] or ("silent" if found["look_alike"] else f"found at step {found['told_at']}")
                print(slug, found["seed"], "look-alike" if found["look_alike"] else "", what, flush=True)
                if args.json:
                    enter(found, args.json)


if __name__ == "__main__":
    main()
