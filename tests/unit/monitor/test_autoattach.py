"""What an unchanged script sees of unisono in its tracebacks: nothing, and all of its own."""

import atexit
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.monitor import autoattach, noted_exit

HOME = Path(unisono.__file__).parent


@pytest.mark.parametrize(
    ("file", "ours"),
    [
        (HOME / "listen" / "torch_patches.py", True),
        (HOME.with_name("unisono_tools") / "train.py", False),
        (HOME.with_name("unisono.py"), False),
        (HOME.parent / "train.py", False),
    ],
)
def test_only_frames_of_the_package_itself_are_ours(file, ours):
    frame = SimpleNamespace(f_code=SimpleNamespace(co_filename=str(file)))
    assert autoattach._is_ours(SimpleNamespace(tb_frame=frame, tb_next=None)) is ours


def test_the_exit_that_a_script_takes_before_it_calls_its_main_is_noted(monkeypatch):
    """`sys.exit(main())`: no model has been wrapped yet."""
    monkeypatch.setattr(sys, "exit", getattr(sys.exit, "__wrapped__", sys.exit))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(atexit, "register", lambda function: None)
    monkeypatch.setattr(dist, "destroy_process_group", dist.destroy_process_group)
    monkeypatch.setattr(DistributedDataParallel, "__init__", DistributedDataParallel.__init__)
    monkeypatch.setattr(noted_exit, "_newest", None)
    autoattach.install()
    leave = sys.exit
    with pytest.raises(SystemExit):
        leave(3)
    assert noted_exit.exit_since(0.0) == (3, "")
