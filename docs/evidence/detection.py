"""Writes what the detection benchmark has found into docs/detection.md, and redraws its pictures.

python -m benchmarks.detection --out detection
cp detection/detection.json docs/evidence/
PYTHONPATH=. python docs/evidence/detection.py
"""

from pathlib import Path

from benchmarks.detection.pictures import draw
from benchmarks.detection.results import as_text, load
from marked import write

EVIDENCE = Path(__file__).parent
PAGE = EVIDENCE.parent / "detection.md"
PICTURES = EVIDENCE.parent / "pictures"


def results():
    tally = load(EVIDENCE)
    versions = ", ".join(f"{name} {version}" for name, version in tally.versions.items())
    return "\n".join((f"Made by `{tally.command}` with {versions}:", "", "```", as_text(tally), "```"))


PARTS = {"results": results}


def main():
    write(PAGE, PARTS)
    for name in draw(load(EVIDENCE), PICTURES):
        (PICTURES / name).replace(PICTURES / f"detection-{name}")


if __name__ == "__main__":
    main()
