"""The house has floors: a module imports from its own floor and from those below, and some rooms have no torch."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# From the ground up. A room is a module or a folder under `unisono`; the longest name that fits a module counts.
FLOORS = (
    {"errors", "terminal", "limits", "_jsonform"},
    {
        "atomic",
        "records",
        "schedule",
        "signals",
        "groups",
        "clock",
        "deferred",
        "shielding",
        "collecting",
        "gradient_hooks",
        "losses",
        "nesting",
        "shares",
        "remembered_buffers",
        "handshake",
        "group_key",
        "guard_file",
    },
    {
        "decision_text",
        "loader_taps",
        "wire",
        "runfile",
        "plan",
        "gram",
        "crowd",
        "sketch",
        "integrations.wrapper",
        "finding",
        "fingerprints",
    },
    {"taps", "rules", "history", "weightings"},
    {"spikes", "situation"},
    {"policy", "policy_rows", "guard_checks"},
    {"guard_options"},
    {"diagnosis", "evidence", "hearing", "weighting_text"},
    {"export", "report", "rundir", "metrics", "consistency", "brevity", "integrations", "settings"},
    {
        "report.page",
        "pageserver",
        "sinks",
        "console",
        "inert",
        "lastwords",
        "parcel",
        "mailbox",
        "sidechannel",
        "directions",
        "probe",
        "rollbook",
        "attendance",
    },
    {
        "run_line",
        "live",
        "evidence.testimony",
        "evidence.witness",
        "steering",
        "microbatching",
        "actions",
        "checkpoints",
    },
    {"runlog", "switchyard", "inquiry"},
    {"guarding"},
    {"exchange", "ear", "introduction"},
    {"planner"},
    {"scribe"},
    {"monitor"},
    {"guarding.setting_up"},
    {"attaching"},
    {"autoattach"},
    {
        *("startup", "lab", "bench", "trial", "testing"),
        *("lab.faults", "lab.lengths", "lab.whatif_question", "lab.launching", "lab.demo"),
    },
    {"commands"},
    {"cli"},
    {"__main__", "__init__"},
)

TORCH_FREE = {
    "errors", "limits",
    "terminal", "_jsonform", "atomic", "records", "runfile", "rundir", "export", "schedule", "plan", "groups",
    "finding", "history", "rules", "diagnosis", "report", "report.page", "pageserver", "sinks", "console", "settings",
    "trial", "testing", "weighting_text", "decision_text", "guard_file", "guard_checks", "guard_options", "policy",
    "policy_rows", "situation", "spikes", "run_line",
    "lab.faults", "lab.lengths", "lab.whatif_question", "lab.launching", "lab.demo",
    "startup", "commands", "cli", "__main__", "__init__",
}  # fmt: skip

# Imported in a process where `import torch` fails.
WITHOUT_TORCH = (
    "unisono",
    "unisono.rules",
    "unisono.diagnosis",
    "unisono.testing",
    "unisono.records",
    "unisono.runfile",
    "unisono.export",
    "unisono.schedule",
    "unisono.cli",
)


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    line: int
    lazy: bool
    """Inside a function: it happens when the function is called, not when the module is imported."""

    def __str__(self):
        return f"{self.importer}:{self.line} imports {self.imported}"


def modules():
    """Dotted name under `unisono` of every source file; packages by their own name, the root as `__init__`."""
    found = {}
    for path in sorted((SOURCE / "unisono").rglob("*.py")):
        parts = path.relative_to(SOURCE / "unisono").with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
        found[".".join(parts)] = path
    return found


MODULES = modules()


def imports_of(module):
    tree = ast.parse(MODULES[module].read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for statement in branch.body
        for node in ast.walk(statement)
    }
    inside_functions = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if id(node) not in typing_only:
            for name in names_in(node, module):
                yield Import(module, name, node.lineno, lazy=id(node) in inside_functions)


def names_in(node, module):
    """Ours without the leading `unisono.`, others by their top name."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module}:{node.lineno} should import by full name, not relatively"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return
    for name in names:
        top, _, rest = name.partition(".")
        yield f"unisono.{own_module(rest)}" if top == "unisono" else top


def own_module(name):
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or "__init__"


IMPORTS = [found for module in MODULES for found in imports_of(module)]
OWN_IMPORTS = [found for found in IMPORTS if found.imported.startswith("unisono.")]


def room(module):
    """The longest listed name that the module is or lies in."""
    rooms = set().union(*FLOORS)
    while module and module not in rooms:
        module = module.rpartition(".")[0]
    return module


def floor(module):
    return next((number for number, rooms in enumerate(FLOORS) if room(module) in rooms), len(FLOORS))


def target(found):
    return found.imported.removeprefix("unisono.")


def test_every_module_has_a_room():
    assert [module for module in MODULES if not room(module)] == []


def test_no_room_is_on_two_floors():
    listed = [name for rooms in FLOORS for name in rooms]
    assert sorted(listed) == sorted(set(listed))
    assert set(listed) >= TORCH_FREE


@pytest.mark.parametrize("module", MODULES)
def test_nothing_reaches_upward(module):
    upward = [
        str(found)
        for found in OWN_IMPORTS
        if found.importer == module
        and floor(target(found)) > floor(module)
        and target(found) != "__init__"  # Python itself imports it before any of its modules
    ]
    assert upward == []


def test_no_cycles_at_run_time():
    below = {module: set() for module in MODULES}
    for found in OWN_IMPORTS:
        if not found.lazy and target(found) != found.importer:
            below[found.importer].add(target(found))
    while leaves := {module for module, needed in below.items() if not needed}:
        below = {module: needed - leaves for module, needed in below.items() if module not in leaves}
    assert below == {}


def test_torch_free_rooms_do_not_import_torch():
    assert [str(found) for found in IMPORTS if found.imported == "torch" and room(found.importer) in TORCH_FREE] == []


def test_torch_free_rooms_do_not_import_rooms_with_torch():
    """A command may reach for them when it runs, but not when it is imported."""
    reaching = [
        str(found)
        for found in OWN_IMPORTS
        if not found.lazy and room(found.importer) in TORCH_FREE and room(target(found)) not in TORCH_FREE
    ]
    assert reaching == []


BLOCKER = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
__import__(sys.argv[2])
"""


EXTRAS = (
    "numpy",
    "pyarrow",
    "matplotlib",
    "bokeh",
    "tensorboard",
    "wandb",
    "mlflow",
    "prometheus_client",
    "opentelemetry",
)
WITHOUT_EXTRAS = {"commands", "report", "pageserver", "sinks"}


def in_rooms(rooms):
    return [f"unisono.{module}" for module in MODULES if room(module) in rooms]


def assert_imports_without(blocked, module):
    done = subprocess.run([sys.executable, "-c", BLOCKER, ",".join(blocked), module], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", [*WITHOUT_TORCH, *in_rooms(WITHOUT_EXTRAS)])
def test_imports_without_torch_and_without_any_extra(module):
    assert_imports_without(("torch", *EXTRAS), module)


def test_the_page_imports_without_torch():
    """All of its modules at once: each takes a second to import."""
    pytest.importorskip("bokeh")
    assert in_rooms({"report.page"})
    code = "\n".join(
        [BLOCKER.rpartition("__import__")[0], *(f"import {module}" for module in in_rooms({"report.page"}))]
    )
    done = subprocess.run([sys.executable, "-c", code, "torch"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
