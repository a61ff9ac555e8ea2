"""Sizes and words of the source."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
TEXTS = {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(text) for name, text in TEXTS.items()}
LONGEST_FILE = 400
LONGEST_BODY = 50

FORBIDDEN = {
    r"\bTODO\b|\bFIXME\b": "finish it, or write an issue",
    r"\bpickle\b": "a file from elsewhere could run code",
    r"(?<![.\w])eval\(": "text could run code",
    r"(?<![.\w])exec\(": "text could run code",
    r"shell\s*=\s*True": "arguments are lists",
    r"weights_only\s*=\s*False": "a checkpoint from elsewhere could run code",
}


def nodes(kind):
    return [(name, node) for name, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, kind)]


def body_lines(function):
    """Without signature and docstring."""
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    body = function.body[1:] if is_docstring else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_files_are_short():
    assert {name: lines for name, text in TEXTS.items() if (lines := text.count("\n")) > LONGEST_FILE} == {}


def test_functions_are_short():
    functions = nodes(ast.FunctionDef)
    assert functions
    assert [f"{name}: {one.name}" for name, one in functions if body_lines(one) > LONGEST_BODY] == []


def test_a_class_name_has_one_meaning():
    counted = Counter(node.name for _, node in nodes(ast.ClassDef))
    assert [name for name, times in counted.items() if times > 1] == []


FAMILIES = ("act/actions/", "act/weightings/", "cli/commands/", "diagnose/rules/", "show/page/charts/", "show/sinks/")
SMALLEST_SATELLITE = 40


def test_what_only_one_other_needs_is_no_file_of_its_own_unless_it_is_long():
    """But for families, whose members are added one by one, and the public names."""
    importers = defaultdict(set)
    for name, node in nodes(ast.ImportFrom):
        for alias in node.names:
            for module in (node.module, f"{node.module}.{alias.name}"):
                importers[f"{module.replace('.', '/')}.py"].add(name)
    small = {name for name, text in TEXTS.items() if text.count("\n") < SMALLEST_SATELLITE and name.count("/") > 1}
    family = {name for name in small if name.removeprefix("unisono/").startswith(FAMILIES)}
    assert {name: importers[name] for name in small - family if len(importers[name]) == 1} == {}


def test_errors_are_raised_not_asserted():
    assert [f"{name}:{node.lineno}" for name, node in nodes(ast.Assert)] == []


def test_forbidden_words():
    found = [
        f"{name}:{number}: {line.strip()} ({reason})"
        for name, text in TEXTS.items()
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern, reason in FORBIDDEN.items()
        if re.search(pattern, line)
    ]
    assert found == []
