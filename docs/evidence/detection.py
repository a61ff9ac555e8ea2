"""Writes what the detection benchmark has found into docs/detection.md, and redraws its pictures.

python -m benchmarks.detection --out detection
cp detection/detection.json docs/evidence/
PYTHONPATH=. python docs/evidence/detection.py
"""

from pathlib import Path

from benchmarks.detection.pictures import draw
from benchmarks.detection.results import as_text, load
from marked import load as evidence
from marked import write

EVIDENCE = Path(__file__).parent
PAGE = EVIDENCE.parent / "detection.md"
PICTURES = EVIDENCE.parent / "pictures"


def results():
    tally = load(EVIDENCE)
    versions = ", ".join(f"{name} {version}" for name, version in tally.versions.items())
    return "\n".join((f"Made by `{tally.command}` with {versions}:", "", "```", as_text(tally), "```"))


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


PARTS = {"results": results, "validation": validation}


def main():
    write(PAGE, PARTS)
    for name in draw(load(EVIDENCE), PICTURES):
        (PICTURES / name).replace(PICTURES / f"detection-{name}")


if __name__ == "__main__":
    main()
