"""Where warnings point that are raised behind a function of ours."""

import warnings

import pytest

from unisono.common import unseen_frame
from unisono.common.unseen_frame import HOME, unseen_by_warnings
from unisono.listen import torch_patches
from unisono.monitor import autoattach


def warn():
    warnings.warn("deprecated", FutureWarning, stacklevel=2)


def between(original):
    """A function like those of the package, defined there as far as Python can tell."""
    namespace = {"original": original}
    exec(compile("def patch(*args):\n    original(*args)\n", f"{HOME}patches.py", "exec"), namespace)
    return namespace["patch"]


def file_of_warning(call):
    with pytest.warns(FutureWarning) as caught:
        call()
    (warning,) = caught
    return warning.filename


def test_a_function_of_ours_is_passed_over():
    assert file_of_warning(between(warn)) == f"{HOME}patches.py"
    assert file_of_warning(unseen_by_warnings(between(warn))) == __file__
    assert file_of_warning(unseen_by_warnings(between(unseen_by_warnings(between(warn))))) == __file__


def test_others_functions_are_left_as_they_are():
    code = warn.__code__
    assert unseen_by_warnings(warn).__code__ is code
    assert unseen_by_warnings(len) is len


def test_its_frames_still_count_as_ours():
    assert unseen_frame._PASSED_OVER.startswith(HOME)


def test_a_wrapped_model_warns_where_it_is_wrapped():
    class Model:
        def __init__(self):
            warnings.warn("deprecated", FutureWarning, stacklevel=2)
            raise LookupError("not to be attached to")

    def wrap():
        with pytest.raises(LookupError):
            Model()

    autoattach._follow(Model)
    assert file_of_warning(wrap) == __file__


def test_a_patched_call_warns_where_it_is_made(monkeypatch):
    class Optimizer:
        def zero_grad(self):
            warnings.warn("deprecated", FutureWarning, stacklevel=2)

    monkeypatch.setattr(torch_patches._patched, "undo", [])
    torch_patches._replace(
        Optimizer, "zero_grad", lambda original: torch_patches._patch_zero_grad(lambda owner: None, original)
    )
    assert file_of_warning(Optimizer().zero_grad) == __file__
