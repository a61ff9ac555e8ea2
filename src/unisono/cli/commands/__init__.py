"""The commands, one module each: `add_parser(subparsers)` and `run(args) -> int`.

A command that must read its line itself has `main(argv) -> int` instead.
"""

COMMANDS = {
    "everyday": {
        "run": "run a training script, unchanged, with unisono listening inside",
        "smoke": "the first steps of a new job, and whether they were healthy",
        "diagnose": "what is wrong in a recorded run, on which rank, why, and what to do",
        "report": "one HTML file that shows a run; it needs no network",
        "live": "the same page following a running job, for browsers on this machine",
        "compare": "what changed between two runs: did the fix work?",
        "explain": "what a finding means, what causes it, and what to do",
    },
    "analysis": {
        "scaling": "how noisy the gradients are, and what more workers would bring",
        "calibrate": "limits for the guard from a recorded run, each with its evidence",
        "batches": "the batches that stood out, for data curation",
        "export": "the records of a run as a table",
    },
    "project": {
        "demo": "train on this machine, once healthy and once with a silent fault, and compare",
        "bench": "what listening costs on this machine, on CPU or GPU",
        "lab": "faults on demand, weightings tried on paper, and the papers' experiments",
    },
}
"""By group, with the line shown in `unisono --help`; here so that neither help nor version imports a command."""
