"""A validation's number on its way: taken at once, read when it has arrived."""

import math

import pytest
import torch

from unisono.listen import validation
from unisono.listen.validation import Validation


@pytest.mark.parametrize(
    "accuracy", [0.75, torch.tensor(0.75), torch.tensor([0.75], dtype=torch.float16), torch.tensor([[0.75]]).double()]
)
def test_a_number_is_ready_at_once(accuracy):
    given = Validation(41, accuracy)
    assert given.ready()
    message = given.message()
    assert (message["kind"], message["step"], message["value"]) == ("validation", 41, 0.75)
    assert isinstance(message["value"], float)


def test_later_changes_of_the_tensor_do_not_matter():
    total = torch.zeros(())
    given = Validation(0, total)
    total += 1
    assert given.message()["value"] == 0.0


def test_nan_is_a_number():
    assert math.isnan(Validation(0, float("nan")).message()["value"])


@pytest.mark.parametrize("nonsense", [torch.zeros(2), torch.zeros(0), "good", None, object()])
def test_nonsense_is_refused(nonsense):
    with pytest.raises((TypeError, ValueError)):
        Validation(0, nonsense)


class OnDevice(torch.Tensor):
    """Says that it lies on a GPU, and fails whoever reads it."""

    device = torch.device("cuda", 0)

    def item(self):
        raise AssertionError("the host would wait here")

    __float__ = item


def test_what_lies_on_a_device_is_copied_and_polled(monkeypatch):
    class Event:
        arrived = False

        def record(self, stream):
            assert stream == "stream of cuda:0"

        def query(self):
            return self.arrived

    class Copied:
        def __init__(self, numbers, dtype):
            (self.number,) = numbers

        def unpack(self, number):
            assert number is self.number
            return 0.5

    monkeypatch.setattr(validation, "DeviceScalars", Copied)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    given = Validation(3, torch.tensor([0.5]).as_subclass(OnDevice))
    assert not given.ready()
    Event.arrived = True
    assert given.ready()
    assert given.message()["value"] == 0.5
