"""Sizes and words of the source."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE = 250
LONGEST_BODY = 50

FORBIDDEN = {
    r"\bTODO\b|\bFIXME\b": "finish it, or write an issue",
    r"\bpickle\b": "a file from elsewhere could run code",
    r"(?<![.\w])eval\(": "text could run code",
    r"(?<![.\w])exec\(": "text could run code",
    r"shell\s*=\s*True": "arguments are lists",
    r"weights_only\s*=\s*False": "a checkpoint from elsewhere could run code",
}


def name(path):
    return str(path.relative_to(SOURCE))


def body_lines(function):
    """Without signature and docstring."""
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    body = function.body[1:] if is_docstring else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("path", FILES, ids=name)
def test_files_are_short(path):
    lines = len(path.read_text().splitlines())
    assert lines <= LONGEST_FILE


@pytest.mark.parametrize("path", FILES, ids=name)
def test_functions_are_short(path):
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    assert {function.name: body_lines(function) for function in functions if body_lines(function) > LONGEST_BODY} == {}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_errors_are_raised_not_asserted(path):
    assert [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)] == []


@pytest.mark.parametrize("path", FILES, ids=name)
def test_forbidden_words(path):
    found = [
        f"line {number}: {line.strip()} ({reason})"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for pattern, reason in FORBIDDEN.items()
        if re.search(pattern, line)
    ]
    assert found == []
