"""What an unchanged script sees of unisono in its tracebacks: nothing, and all of its own."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import unisono
from unisono.monitor import autoattach

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
