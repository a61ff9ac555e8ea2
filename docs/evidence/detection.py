"""Writes what the detection benchmark has found into docs/detection.md, and redraws its pictures.

python -m benchmarks.detection --only faults --out detection
cp detection/detection.json docs/evidence/
python -m benchmarks.detection --only healthy --out healthy
python -m benchmarks.detection --only real --out healthy_real
make soak PART=manuals
make soak PART=seeds
PYTHONPATH=. python docs/evidence/detection.py
"""

import re
import statistics
from collections import defaultdict
from pathlib import Path

from benchmarks.detection.pictures import draw
from benchmarks.detection.results import as_text, load
from marked import load as evidence
from marked import table, write

EVIDENCE = Path(__file__).parent
RARELY_HEARD = EVIDENCE / "default_schedule"
"""Faults with the default schedule, by later rules than the rest."""

HEALTHY = (EVIDENCE / "healthy", EVIDENCE / "healthy_real")
"""Healthy steps, by the rules of today: of virtual workers and of real processes."""

PAGE = EVIDENCE.parent / "detection.md"
PICTURES = EVIDENCE.parent / "pictures"


def results(folder=EVIDENCE):
    tally = load(folder)
    versions = ", ".join(f"{name} {version}" for name, version in tally.versions.items())
    return "\n".join((f"Made by `{tally.command}` with {versions}:", "", "```", as_text(tally), "```"))


def rarely_heard():
    return results(RARELY_HEARD)


def healthy():
    return "\n\n".join(map(results, HEALTHY))


def exact():
    """A case passes only if all of its seeds do."""
    found = evidence("soak/seeds.json")
    seeds_of = [re.search(r"test_(\w+)\[(?:(.*)-)?(\d+)\]$", row["case"]) for row in found["cases"]]
    rows = [
        (
            case[2] or case[1].replace("_", " "),
            f"{case[3]} of {case[3]}" if row["outcome"] == "passed" else row["outcome"],
        )
        for case, row in zip(seeds_of, found["cases"], strict=True)
    ]
    return "\n".join((f"Made by `{found['command']}`:", "", table(("job", "seeds"), rows)))


def validation():
    found = evidence("validation_histories.json")
    return (
        f"**Validation that stalls (UN412)** was tried on invented histories, drawn anew after the rule was fixed "
        f"(`{found['command']}`): {found['false_alarms']} alarms in {found['healthy']:,} healthy ones with "
        f"{found['healthy_validations']:,} validations. Of {found['stalls']} stalls {found['found']} were found, of "
        "those that were clear (a quarter of the loss's fall still to come, noise below 2 % of what validation gains) "
        f"{found['clear_found']} of {found['clear_stalls']}, and {found['found_before_they_began'] or 'none'} before "
        f"it began; half of them within {found['median_delay']:.0f} validations, nine in ten within "
        f"{found['delay_of_9_in_10']:.0f}. It rather misses a stall than doubts a healthy run."
    )


def manuals():
    """One row for each case: the seeds in which it was found, and those in which its look-alike was left in peace."""
    found = evidence("manual_cases.json")
    by_case = defaultdict(lambda: {False: [], True: []})
    for row in found["rows"]:
        by_case[row["case"]][row["look_alike"]].append(row)
    head = (
        "pattern",
        "case",
        "finding",
        "found",
        "told at step",
        "look-alikes silent",
        "manual's rule: case, look-alike",
    )
    rows = [manual_row(*jobs.values()) for jobs in by_case.values() if jobs[False] and jobs[True]]
    return "\n".join((f"Made by `{found['command']}`:", "", table(head, sorted(rows))))


def manual_row(jobs, look_alikes):
    first, right = jobs[0], [row for row in jobs if not row["wrong"]]
    silent = [row for row in look_alikes if not row["wrong"]]
    told = [row["told_at"] for row in right]
    alarmed = (
        [sum(row["alarms"] > 0 for row in rows) for rows in (jobs, look_alikes)] if first["alarms"] is not None else []
    )
    return (
        first["named"],
        first["case"],
        first["code"],
        f"{len(right)} of {len(jobs)}",
        f"{statistics.median_low(told)}" if told else "-",
        f"{len(silent)} of {len(look_alikes)}",
        f"{alarmed[0]} of {len(jobs)}, {alarmed[1]} of {len(look_alikes)}" if alarmed else "no number given",
    )


PARTS = {
    "results": results,
    "rarely_heard": rarely_heard,
    "exact": exact,
    "healthy": healthy,
    "validation": validation,
    "manuals": manuals,
}


def main():
    write(PAGE, PARTS)
    tally = load(EVIDENCE)
    tally.faults += load(RARELY_HEARD).faults
    for folder in HEALTHY:
        tally.healthy += load(folder).healthy
    for name in draw(tally, PICTURES):
        (PICTURES / name).replace(PICTURES / f"detection-{name}")


if __name__ == "__main__":
    main()
