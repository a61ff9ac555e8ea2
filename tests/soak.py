"""The tests marked `soak(part)`, at full size: as many as fit into some minutes, going on where it was stopped.

What passed is not run again until the sources change; results lie in docs/evidence/soak/<part>.json.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = Path("docs", "evidence", "soak")
EACH = 8
"""Cases in one process, where some run side by side: most of a short case is the start of its process."""


class Parts:
    """Pytest's collection, by part."""

    def __init__(self):
        self.cases = {}

    def pytest_collection_finish(self, session):
        for item in session.items:
            (part,) = item.get_closest_marker("soak").args
            self.cases.setdefault(part, []).append(item.nodeid)


def collected(root):
    parts, said = Parts(), io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(["--collect-only", "-q", "-m", "soak", "--rootdir", str(root), str(root / "tests")], [parts])
    if code != pytest.ExitCode.OK:
        raise SystemExit(said.getvalue())
    return parts.cases


def digest_of_sources(root):
    sha = hashlib.sha256()
    for path in sorted((root / "src").rglob("*.py")):
        sha.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return sha.hexdigest()


class Record:
    """What became of each case of a part, on disk after each of them."""

    def __init__(self, root, part):
        self.path = root / RESULTS / f"{part}.json"
        sources = digest_of_sources(root)
        before = json.loads(self.path.read_text()) if self.path.exists() else {}
        cases = before["cases"] if before.get("sources") == sources else []
        self.content = {"part": part, "command": f"make soak PART={part}", "sources": sources, "cases": cases}

    def outcomes(self):
        return {row["case"]: row["outcome"] for row in self.content["cases"]}

    def open_cases(self, cases):
        """What never ran comes before what failed."""
        outcomes = self.outcomes()
        left = [case for case in cases if outcomes.get(case) != "passed"]
        return sorted(left, key=lambda case: case in outcomes)

    def enter(self, case, outcome, seconds):
        row = {"case": case, "outcome": outcome, "seconds": round(seconds, 1), "date": now()}
        others = [other for other in self.content["cases"] if other["case"] != case]
        self.content["cases"] = sorted([*others, row], key=lambda each: each["case"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".tmp")
        draft.write_text(json.dumps(self.content, indent=1) + "\n")
        os.replace(draft, self.path)


def now():
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def outcomes_of(root, cases, jobs):
    """By case `passed`, `skipped` or `failed`, and seconds; the words of what failed are shown."""
    options = ["-m", "soak", "-vv", "--durations=0", "-p", "no:cacheprovider", "--rootdir", root]
    side_by_side = ["-n", str(jobs)] if jobs > 1 else []
    command = [sys.executable, "-m", "pytest", *options, *side_by_side, *cases]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = {}
    for case in cases:
        name = re.escape(case)
        outcome = re.search(rf"{name} (PASSED|SKIPPED)|(PASSED|SKIPPED) {name}(?!\S)", done.stdout)
        seconds = re.findall(rf"([\d.]+)s \w+ +{name}$", done.stdout, re.MULTILINE)
        word = (outcome[1] or outcome[2]).lower() if outcome else "failed"
        found[case] = (word, sum(map(float, seconds)))
    if any(word == "failed" for word, _ in found.values()):
        print("\n".join(done.stdout.splitlines()[-60:]))
    return found


def run_part(root, part, cases, deadline, jobs):
    """Whether no case has failed; none is begun after the deadline."""
    record = Record(root, part)
    waiting, count = record.open_cases(cases), jobs * EACH if jobs > 1 else 1
    while waiting and time.monotonic() < deadline:
        batch, waiting = waiting[:count], waiting[count:]
        for case, (outcome, seconds) in outcomes_of(root, batch, jobs).items():
            record.enter(case, outcome, seconds)
            print(f"{part}: {outcome} in {seconds:.0f} s: {case}", flush=True)
    outcomes = record.outcomes()
    known = [outcomes.get(case, "open") for case in cases]
    print(f"{part}: {', '.join(f'{known.count(one)} {one}' for one in sorted(set(known)))}", flush=True)
    return "failed" not in known


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", help="one part of them; without it, all")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--jobs", type=int, default=1, help="cases side by side; those that measure time want 1")
    args = parser.parse_args(arguments)
    deadline = time.monotonic() + 60 * args.minutes
    cases = collected(root)
    if args.part and args.part not in cases:
        print(f"PART should be one of {', '.join(sorted(cases))}. Found `{args.part}`", file=sys.stderr)
        return 2
    healthy = [
        run_part(root, part, cases[part], deadline, args.jobs) for part in sorted(cases) if args.part in (None, part)
    ]
    return 0 if all(healthy) else 1


if __name__ == "__main__":
    sys.exit(main())
