"""Writes what the detection benchmark has found into docs/detection.md, and redraws its pictures.

unisono lab detect --out detection
cp detection/detection.json docs/evidence/
python docs/evidence/detection.py
"""

import re
from pathlib import Path

from unisono.lab.pictures import draw
from unisono.lab.results import as_text, load

EVIDENCE = Path(__file__).parent
PAGE = EVIDENCE.parent / "detection.md"
PICTURES = EVIDENCE.parent / "pictures"
RESULTS = re.compile(r"(<!-- results -->\n).*(<!-- /results -->)", re.DOTALL)


def rendered(page, tally):
    """The page with these results in their place."""
    versions = ", ".join(f"{name} {version}" for name, version in tally.versions.items())
    lines = (f"Made by `{tally.command}` with {versions}:", "", "```", as_text(tally), "```", "")
    return RESULTS.sub(lambda place: place[1] + "\n".join(lines) + place[2], page)


def main():
    tally = load(EVIDENCE)
    PAGE.write_text(rendered(PAGE.read_text(), tally))
    for name in draw(tally, PICTURES):
        (PICTURES / name).replace(PICTURES / f"detection-{name}")


if __name__ == "__main__":
    main()
