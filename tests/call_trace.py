"""Which of unisono's own functions are called, when, and by which of them."""

import ast
import contextlib
import functools
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "unisono"


@dataclass(frozen=True)
class Call:
    rank: int
    number: int
    """Of this call, among those of its process."""

    caller: int
    """The number of the call of ours it was made from; 0 where others made it."""

    time: int
    function: str
    """As in `listen/handover.py: Handover.send`."""


@dataclass
class Recorder:
    """Lambdas and comprehensions belong to the function that they are written in."""

    rank: int = 0
    rows: list = field(default_factory=list)
    _own: dict = field(default_factory=dict)
    _numbers: count = field(default_factory=lambda: count(1))
    _stacks: threading.local = field(default_factory=threading.local)

    @contextlib.contextmanager
    def recording(self):
        """Of this thread, and of those that are started meanwhile."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def save(self, path):
        Path(path).write_text(json.dumps(self.rows))

    def calls(self):
        """Bodies of classes run as well, when they are imported; they are no functions."""
        places = {(file, line) for *_, file, line in self.rows}
        names = {(file, line): functions(file).get(line) for file, line in places}
        return [
            Call(self.rank, *numbers, f"{file}: {names[file, line]}")
            for *numbers, file, line in self.rows
            if names[file, line]
        ]

    def _profile(self, frame, event, _):
        if event not in ("call", "return"):
            return
        code = frame.f_code
        own = self._own.get(code)
        if own is None:
            own = self._own[code] = self._place(code)
        if not own:
            return
        stack = self._stacks.__dict__.setdefault("numbers", [])
        if event == "call":
            number = next(self._numbers)
            self.rows.append((number, stack[-1] if stack else 0, time.monotonic_ns(), *own))
            stack.append(number)
        elif stack:
            stack.pop()

    @staticmethod
    def _place(code):
        """File and line of a function of ours; nothing of others."""
        path = Path(code.co_filename)
        if code.co_name.startswith("<") or path.name.startswith("<") or not path.is_relative_to(SOURCE):
            return ()
        return str(path.relative_to(SOURCE)), code.co_firstlineno


def loaded(path, rank):
    return Recorder(rank, json.loads(Path(path).read_text())).calls()


@functools.cache
def functions(file):
    """The functions of a source file by their first line, decorators included, as `Class.method` or `outer.inner`."""
    found = {}

    def look(node, within):
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.ClassDef | ast.FunctionDef)
            inner = f"{within}{child.name}." if named else within
            if isinstance(child, ast.FunctionDef):
                found[min([child, *child.decorator_list], key=lambda one: one.lineno).lineno] = inner[:-1]
            look(child, inner)

    look(ast.parse((SOURCE / file).read_text()), "")
    return found
