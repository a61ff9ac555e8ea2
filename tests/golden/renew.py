"""Writes what unisono says of one small run: `python tests/golden/renew.py`. Look at `git diff` before committing it.

The run file itself stays as it is, so that it also shows that old files can be read; `--run` makes it anew.
"""

import argparse
import contextlib
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUN = HERE / "run.jsonl"
ENVIRONMENT = {"COLUMNS": "80", "LINES": "24", "NO_COLOR": "1", "TERM": "dumb", "TZ": "UTC", "PYTHONUTF8": "1"}
COMMANDS_OF_LAB = ("list", "whatif")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="make the run file anew, too")
    parser.add_argument("--into", type=Path, default=HERE, help="folder (default: %(default)s)")
    asked = parser.parse_args()
    if asked.run:
        RUN.write_text(invented_run())
    # A process of its own: ids on the page count what the process has drawn, and argparse looks at the terminal.
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(RUN, folder)
        command = [sys.executable, __file__, "--into", str(asked.into.resolve())]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("UNISONO")}
        subprocess.run(command, cwd=folder, env=environment | ENVIRONMENT | {"GOLDEN": "write"}, check=True)


def write(folder):
    """In the folder of the run."""
    (folder / "diagnose.json").write_text(said("diagnose", "run.jsonl", "--json"))
    (folder / "diagnose.txt").write_text(said("diagnose", "run.jsonl"))
    (folder / "help.txt").write_text(all_help())
    with contextlib.suppress(ImportError):
        import bokeh

        (folder / "page.sha256").write_text(f"{page_digest()}  bokeh {bokeh.__version__}\n")


def said(*arguments):
    from unisono.cli.main import main as unisono

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        unisono(arguments)
    return out.getvalue()


def all_help():
    from unisono.cli.commands import COMMANDS

    names = [[name] for group in COMMANDS.values() for name in group]
    lines = [[], *names, *(["lab", name] for name in COMMANDS_OF_LAB)]
    return "\n".join(f"$ {' '.join(['unisono', *line])} --help\n{said(*line, '--help')}" for line in lines)


def page_digest():
    """Of the page without unisono's version, Bokeh's scripts, and the policy, which holds the scripts' hashes."""
    from unisono import __version__
    from unisono.show.page.page_shell import bokeh_script

    said("report", "run.jsonl", "-o", "page.html")
    page = Path("page.html").read_text("utf-8")
    assert page.count(bokeh_script()) == 1
    page = page.replace(bokeh_script(), "").replace(f"unisono {__version__}", "unisono")
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    return hashlib.sha256(page.encode()).hexdigest()


def invented_run():
    """Four workers, of which rank 2 opposes the others; two decisions of the guard; started again at step 58."""
    sys.path.insert(0, str(HERE.parent))
    import invented_runs as invented
    from unisono.records import to_line

    first, second = {"opposed": 2, "seed": 11}, {"opposed": 2, "seed": 12, "number": 2}
    records = [
        invented.header("golden", "train.py"),
        invented.attempt(4),
        *invented.steps(count=50, matrices=False, **first),
        invented.note(49, "ranks 3 have fallen silent; going on with the others", "unheard", (3,)),
        *invented.steps(count=8, first=50, matrices=False, **first),
        invented.decision(57, ranks=(1,), evidence={"loss": 3.5}, digest="5c0f"),
        *invented.steps(count=4, first=58, **first),
        invented.attempt(4, number=2, first_step=58),
        *invented.steps(count=4, first=58, matrices=False, **second),
        invented.decision(61, "roll-back", "the loss has left its usual range", attempt=2, to_step=58, digest="a41d"),
        *invented.steps(count=2, first=62, **second),
        invented.end(63, number=2),
    ]
    return "".join(to_line(record) + "\n" for record in records)


if __name__ == "__main__":
    if os.environ.get("GOLDEN") == "write":
        write(Path(sys.argv[-1]))
    else:
        main()
