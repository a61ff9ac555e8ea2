"""Folders are stages: a stage imports only what its row names, and the reading half of unisono has no torch."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

STAGES = {
    "common": "",
    "records": "common",
    "sketch": "common records",
    "listen": "common records sketch",
    "exchange": "common records sketch listen",
    "measure": "common records sketch listen exchange",
    "diagnose": "common records",
    "show": "common records diagnose",
    "act": "common records sketch listen exchange diagnose",
    "monitor": "common records sketch listen exchange measure diagnose show act",
    "lab": "common records sketch listen exchange measure diagnose show act monitor",
    "cli": "common records sketch listen exchange measure diagnose show act monitor lab",
}
ROOT_FILES = {"__init__.py", "__main__.py", "policy.py", "py.typed", "sinks.py", "testing.py", "weightings.py"}
WITHOUT_TORCH = ("common", "records", "diagnose", "show", "cli")
"""When they are imported. A command may reach for torch when it runs."""

PUBLIC_WITHOUT_TORCH = ("unisono", "unisono.policy", "unisono.sinks", "unisono.testing")
EXTRAS = (
    *("numpy", "pyarrow", "matplotlib", "bokeh", "orjson"),
    *("tensorboard", "wandb", "mlflow", "prometheus_client", "opentelemetry"),
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


def modules(source):
    """Every source file by its dotted name; packages by their own name."""
    found = {}
    for path in sorted((source / "unisono").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source):
    known = modules(source)
    return [found for module, path in known.items() for found in imports_of(module, path, known)]


def imports_of(module, path, known):
    tree = ast.parse(path.read_text())
    typing_only = inside(tree, lambda node: isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    lazy = inside(tree, lambda node: isinstance(node, ast.FunctionDef | ast.Lambda))
    for node in ast.walk(tree):
        if id(node) not in typing_only:
            for name in names_in(node, module):
                yield Import(module, own_module(name, known), node.lineno, lazy=id(node) in lazy)


def inside(tree, is_branch):
    return {id(node) for branch in ast.walk(tree) if is_branch(branch) for node in ast.walk(branch)}


def names_in(node, module):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{module}:{node.lineno} should import by full name, not relatively"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def own_module(name, known):
    """Ours by the module it names or lies in, others by their top name."""
    if not name.startswith("unisono"):
        return name.partition(".")[0]
    while name not in known:
        name = name.rpartition(".")[0]
    return name


def stage(module):
    """The folder; a root file has none."""
    return module.split(".")[1] if module.count(".") else ""


def against_the_rows(found):
    own, other = stage(found.importer), stage(found.imported)
    # The root package is imported by Python itself before any of its modules.
    if own not in STAGES or own == other or found.imported == "unisono":
        return False
    return found.imported.startswith("unisono.") and other not in STAGES[own].split()


IMPORTS = imports(SOURCE)


def test_the_listing_is_the_table():
    listed = {path.name for path in (SOURCE / "unisono").iterdir() if path.name != "__pycache__"}
    assert listed == set(STAGES) | ROOT_FILES


def test_a_stage_imports_what_its_row_names():
    assert [str(found) for found in IMPORTS if against_the_rows(found)] == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("listen/reader.py", "from unisono.act.guard import options"),
        ("common/errors.py", "import unisono.records"),
        ("show/page.py", "def draw():\n    from unisono.act import calibration"),
        ("records/run.py", "from unisono import testing"),
    ],
)
def test_a_stage_that_reaches_further_is_seen(module, line, tmp_path):
    for path in ("__init__.py", "testing.py", "act/__init__.py", "act/guard.py", "records/__init__.py", module):
        (tmp_path / "unisono" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "unisono" / path).write_text(line if path == module else "")
    assert [against_the_rows(found) for found in imports(tmp_path)] == [True]


def test_no_cycles_at_run_time():
    below = {module: set() for module in modules(SOURCE)}
    for found in IMPORTS:
        if not found.lazy and found.imported in below and found.imported != found.importer:
            below[found.importer].add(found.imported)
    while leaves := {module for module, needed in below.items() if not needed}:
        below = {module: needed - leaves for module, needed in below.items() if module not in leaves}
    assert below == {}


BLOCKER = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
for name in sys.argv[2:]:
    __import__(name)
"""


def import_without(blocked, names):
    assert names
    done = subprocess.run([sys.executable, "-c", BLOCKER, ",".join(blocked), *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def torch_free_modules():
    return [module for module in modules(SOURCE) if stage(module) in WITHOUT_TORCH]


def needs_bokeh(module):
    return module.startswith("unisono.show.page")


def test_reading_a_run_needs_neither_torch_nor_any_extra():
    names = [name for name in torch_free_modules() if not needs_bokeh(name)]
    import_without(("torch", *EXTRAS), [*PUBLIC_WITHOUT_TORCH, *names])


def test_the_page_needs_no_torch():
    pytest.importorskip("bokeh")
    import_without(("torch",), [name for name in torch_free_modules() if needs_bokeh(name)])
