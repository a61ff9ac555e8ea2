"""Text made from evidence, put between the marks of a page."""

import json
import re
from pathlib import Path

EVIDENCE = Path(__file__).parent


def load(name, folder=EVIDENCE):
    return json.loads((folder / name).read_text())


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def rendered(page, parts):
    """The page with what each part makes between `<!-- part -->` and `<!-- /part -->`."""
    for name, make in parts.items():
        marks = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text = make()
        page, places = re.subn(marks, lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page, flags=re.DOTALL)
        if places != 1:
            raise ValueError(f"A page should have the marks of {name} once. Found them {places} times.")
    return page


def write(page, parts):
    page.write_text(rendered(page.read_text(), parts))
