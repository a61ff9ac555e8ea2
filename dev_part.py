import os, sys, time
from pathlib import Path
from unisono.lab import results
from unisono.lab.benchmark import LONG
from unisono.lab.detect import detect
from unisono.lab.plan_of_trials import fault_trials, healthy_trials
from unisono.lab.real_part import real_part
from unisono.lab.tally import Tally, fault_rows, healthy_rows
if __name__ == "__main__":
    t = time.time(); part = sys.argv[1]
    if part == "faults":
        out = detect(fault_trials(LONG.runs, LONG.workers), 16)
    elif part == "real":
        out = real_part(int(sys.argv[2]), int(sys.argv[3]), 16)
    else:
        names = sorted({x.name for x in healthy_trials(1, (4,), 100)}); half = names[:8] if part.endswith("0") else names[8:]
        out = detect([x for x in healthy_trials(LONG.healthy_runs, LONG.workers, LONG.steps) if x.name in half], 16)
    results.save(Tally("unisono lab detect", {}, fault_rows(out), healthy_rows(out)), Path(os.environ["OUT"]) / part)
    print(part, time.time() - t, len(out))
