"""Training scripts as they are, one after the other, as forked ranks: a folder for results and `WORKERS:SCRIPT ...`.

A run lies in `<folder>/<parent>/<name>`, and how each rank ended in `codes.json`.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import forked


def main(folder, *lines):
    codes = {}
    for line in lines:
        workers, _, script = line.partition(":")
        name = f"{Path(script).parent.name}/{Path(script).stem}"
        sys.stderr.write(f"== {name}\n")
        os.environ["UNISONO_RUN_DIR"] = str(Path(folder, name))
        codes[name] = forked.run(int(workers), script)
    Path(folder, "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
