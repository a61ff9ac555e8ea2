"""The tests marked `soak(part)`, at full size: as many as fit into some minutes, going on where it was stopped.

What passed is not run again until the sources change; results lie in docs/evidence/soak/<part>.json.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = Path("docs", "evidence", "soak")


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


def outcome_of(root, case):
    """`passed`, `skipped` or `failed`; the words of what failed are shown."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "soak", "-p", "no:cacheprovider", "--rootdir", root, case]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = done.stdout.splitlines() or [""]
    if done.returncode == 0:
        return "passed" if " passed" in lines[-1] else "skipped"
    print("\n".join(lines[-60:]))
    return "failed"


def run_part(root, part, cases, deadline):
    """Whether no case has failed; none is begun after the deadline."""
    record = Record(root, part)
    for case in record.open_cases(cases):
        if time.monotonic() >= deadline:
            break
        began = time.monotonic()
        outcome = outcome_of(root, case)
        record.enter(case, outcome, time.monotonic() - began)
        print(f"{part}: {outcome} in {time.monotonic() - began:.0f} s: {case}", flush=True)
    outcomes = record.outcomes()
    known = [outcomes.get(case, "open") for case in cases]
    print(f"{part}: {', '.join(f'{known.count(one)} {one}' for one in sorted(set(known)))}", flush=True)
    return "failed" not in known


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", help="one part of them; without it, all")
    parser.add_argument("--minutes", type=float, default=30)
    args = parser.parse_args(arguments)
    deadline = time.monotonic() + 60 * args.minutes
    cases = collected(root)
    if args.part and args.part not in cases:
        print(f"PART should be one of {', '.join(sorted(cases))}. Found `{args.part}`", file=sys.stderr)
        return 2
    healthy = [run_part(root, part, cases[part], deadline) for part in sorted(cases) if args.part in (None, part)]
    return 0 if all(healthy) else 1


if __name__ == "__main__":
    sys.exit(main())
