"""Start-up hook of `unisono run`: Python imports this module by itself in every process with our folder on PYTHONPATH.

It waits for torch to be imported and then has unisono listen. It imports nothing that Python has not already loaded,
hands over to the `sitecustomize` it stands in front of, and leaves `sys.path` as it would have been.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in `typing`, without importing it into every process
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

AWAITED = "torch"


class TorchWatch:
    """A finder that finds nothing itself: it borrows torch's loader, to be told when torch has been loaded.

    All of torch is awaited rather than its DDP module: that is loaded halfway, when most of torch is not there yet.
    """

    searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != AWAITED or self.searching:
            return None
        self.searching = True
        try:
            spec = first_spec(name, path, target)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = ToldLoader(spec.loader, self)  # type: ignore[assignment]
        return spec


class ToldLoader:
    """Loads as the real loader does, with the real loader back in its place, then lets unisono in."""

    def __init__(self, loader: Any, watch: TorchWatch) -> None:
        self.loader, self.watch = loader, watch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        if self.watch in sys.meta_path:
            sys.meta_path.remove(self.watch)
        listen()


def first_spec(name: str, path: Any, target: Any) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


def listen() -> None:
    try:
        from unisono.monitor.autoattach import install

        install()
    except Exception as error:  # the script must run on, whatever is wrong with us
        complain(f"not listening in process {os.getpid()}: {type(error).__name__}: {error}")


def complain(text: str) -> None:
    try:
        sys.stderr.write(f"unisono: {text}\n")
    except (OSError, ValueError, AttributeError):
        return


def step_aside() -> None:
    """PYTHONPATH stays as it is: the processes that this one starts need it."""
    ours = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != ours]


def hand_over() -> None:
    """Run the next `sitecustomize`; an error in it goes to the interpreter, which reports it as ever."""
    spec = first_spec(__name__, None, None)
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    from _frozen_importlib import module_from_spec  # the one behind `importlib.util`, which is not loaded yet

    sys.modules[__name__] = successor = module_from_spec(spec)
    spec.loader.exec_module(successor)


def wanted() -> bool:
    return os.environ.get("UNISONO_AUTO") == "1" and os.environ.get("UNISONO", "").lower() != "off"


step_aside()
if wanted():
    sys.meta_path.insert(0, TorchWatch())
hand_over()
