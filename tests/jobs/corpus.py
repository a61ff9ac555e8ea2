"""Training scripts as they are, one after the other, as forked ranks: a folder for results and `WORKERS:SCRIPT ...`.

A run lies in `<folder>/<parent>/<name>`, and how each rank ended in `codes.json`.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import forked


def ended(workers, script, run):
    """Again where a rank aborted, as a job may that ends while directions are being connected (docs/notebook.md)."""
    os.environ["UNISONO_RUN_DIR"] = str(run)
    codes = forked.run(workers, script)
    if -signal.SIGABRT in codes:
        shutil.rmtree(run)
        codes = forked.run(workers, script)
    return codes


def main(folder, *lines):
    codes = {}
    for line in lines:
        workers, _, script = line.partition(":")
        name = f"{Path(script).parent.name}/{Path(script).stem}"
        sys.stderr.write(f"== {name}\n")
        codes[name] = ended(int(workers), script, Path(folder, name))
    Path(folder, "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
