"""Catches real bugs and takes pictures of their pages: docs/gallery.md and docs/pictures/gallery/.

python docs/pictures/gallery.py

Trains each script of the corpus with four processes, writes its report, and opens it in chromium. Needs torch, the
extra `report`, playwright and chromium; takes about three minutes.
"""

import ast
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus" / "bugs"
PICTURES = ROOT / "docs" / "pictures" / "gallery"
PAGE = ROOT / "docs" / "gallery.md"
WORKERS = 4

BUGS = {
    "iterable_not_sharded": (
        "matrix",
        "Every pair of workers has the same gradient: one worker's work, done four times.",
    ),
    "nan_on_one_rank": (
        "map-loss",
        "Black cells: at step 40 the loss of rank 2 is no number, and from then on nobody's is.",
    ),
    "clipping_on_one_rank": (
        "map-norm",
        "Nothing to be seen before all-reduce: the gradient is changed after it, on rank 0 alone.",
    ),
    "no_sync_off_by_one": ("cos", "Nothing unusual before all-reduce: only comparing the gradients after it tells."),
    "forgotten_set_epoch": ("loss", "Nothing to be seen in the loss: every epoch repeats the order of the first."),
}
"""The chart in which each shows best, and what is to be seen there."""

HERO = "sign-flip"
"""The README's picture: a fault of the lab that no loss curve shows."""

CHROMIUM = "/usr/bin/chromium"


def main():
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 960, "height": 900}, locale="en-US")
        entries = [caught(name, *about, Path(folder), tab) for name, about in BUGS.items()]
        hero(Path(folder), tab)
        browser.close()
    PAGE.write_text(HEAD + "\n".join(entries))


def caught(name, figure, words, folder, tab):
    """The entry of one bug, with its pictures taken."""
    run = folder / name
    train(run, CORPUS / f"{name}.py")
    finding = json.loads(unisono("diagnose", run, "--json"))["findings"][0]
    opened(run, tab)
    saved(tab.locator("#findings article").first, f"{name}-finding.png")
    saved(tab.locator(f"#figure-{figure}"), f"{name}-chart.png")
    title = ast.get_docstring(ast.parse((CORPUS / f"{name}.py").read_text())).splitlines()[0].rstrip(".")
    return ENTRY.format(
        title=title,
        name=name,
        code=finding["code"],
        slug=finding["slug"],
        words=words,
        why=finding["why"],
    )


def hero(folder, tab):
    unisono("demo", "--fault", HERO, "--out", folder / "demo")
    opened(folder / "demo" / HERO, tab)
    hidden = "header, footer, .hint, h2, section, figure, #slot-findings > p { display: none }"
    shown = "#slot-verdict, #findings, section:has(#slot-rank-maps), #figure-map-window { display: block }"
    tab.add_style_tag(content=f"{hidden} {shown}")
    saved(tab.locator("main"), "hero.png")


def train(run, script):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={WORKERS}",
        str(script),
    ]
    unisono("run", "--out", run, "--", *command)


def unisono(*arguments):
    command = [sys.executable, "-m", "unisono", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def opened(run, tab):
    unisono("report", run)
    tab.goto((run / "report.html").as_uri())
    tab.wait_for_selector("body[data-ready]")
    tab.wait_for_timeout(500)


def saved(part, name):
    Image.open(io.BytesIO(part.screenshot())).convert("RGB").save(PICTURES / name, optimize=True)


HEAD = """\
# Gallery

Pages of faults that were really caught. Each script below is a short form of a bug that somebody reported in public;
its first lines say where. It was trained unchanged, by four processes, under `unisono run`; the pictures are parts of
what `unisono report` then wrote. Made by `python docs/pictures/gallery.py`.

"""

ENTRY = """\
## {title}

[`tests/corpus/bugs/{name}.py`](../tests/corpus/bugs/{name}.py), found as [{code} {slug}](findings.md).

![The finding as the page shows it: {why}](pictures/gallery/{name}-finding.png)

{words}

![{words}](pictures/gallery/{name}-chart.png)
"""

if __name__ == "__main__":
    main()
