"""Compiles the fold in C into the package. Without a working compiler the package is pure Python, and slower on CPU."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-pthread")
SKETCH = Path("src/unisono/sketch")
SOURCE, LIBRARY = "fold.c", "_fold.so"
PLATFORM = sysconfig.get_platform().replace("-", "_").replace(".", "_")


class NativeBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / SKETCH
        self._scratch = tempfile.TemporaryDirectory()
        # An editable installation imports from the sources; a wheel leaves them as they are.
        library = (folder if version == "editable" else Path(self._scratch.name)) / LIBRARY
        trouble = compile_library(folder / SOURCE, library)
        if trouble:
            self.app.display_warning(f"unisono is built without its native fold: {trouble}")
        elif version != "editable":
            build_data["force_include"][str(library)] = f"unisono/sketch/{LIBRARY}"
            build_data["pure_python"] = False
            # The library is loaded by ctypes and knows nothing of Python: one wheel serves all versions.
            build_data["tag"] = f"py3-none-{PLATFORM}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._scratch.cleanup()


def compile_library(source: Path, library: Path) -> str | None:
    """Tries one compiler after the other; why none of them did it, if so. No older library is left behind then."""
    troubles = []
    # Renamed when complete: another process may be about to load it.
    unfinished = library.with_suffix(f".{os.getpid()}")
    for compiler in compilers():
        trouble = run([*compiler, *FLAGS, str(source), "-o", str(unfinished)])
        if trouble is None:
            unfinished.replace(library)
            return None
        troubles.append(trouble)
    unfinished.unlink(missing_ok=True)
    library.unlink(missing_ok=True)
    return "; ".join(troubles)


def compilers() -> list[list[str]]:
    """The one that `CC` names, else the one Python was built with, else whatever is there."""
    if os.environ.get("CC"):
        return [shlex.split(os.environ["CC"])]
    return [shlex.split(name) for name in (sysconfig.get_config_var("CC"), "cc", "gcc", "clang") if name]


def run(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{command[0]}: {error}"
    if done.returncode == 0:
        return None
    return f"{command[0]}: {(done.stderr.strip().splitlines() or [f'exit code {done.returncode}'])[0]}"
