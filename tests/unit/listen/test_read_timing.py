"""When noted gradients are read. What DDP does with them meanwhile is tested in real processes."""

import pytest
import torch

from unisono.listen.read_timing import GradientLifetime, ReadTiming


def backward(collector, layer):
    """A backward pass whose gradients are noted."""

    def arrived(parameter):
        collector.noted(parameter, parameter.grad)

    handles = [parameter.register_post_accumulate_grad_hook(arrived) for parameter in layer.parameters()]
    layer(torch.ones(1, 2)).sum().backward()
    for handle in handles:
        handle.remove()


def failed_reading(layer, failing):
    def read():
        if failing[0]:
            raise MemoryError("while reading")

    collector = ReadTiming(read)
    collector.begin(GradientLifetime.STAY, list(layer.parameters()))
    backward(collector, layer)
    return collector


def test_an_error_while_reading_reaches_neither_training_nor_the_next_reading():
    layer, failing = torch.nn.Linear(2, 2), [True]
    collector = failed_reading(layer, failing)
    assert layer.weight.grad is not None
    with pytest.raises(MemoryError):
        collector.end(pending=False)
    failing[0] = False
    collector.begin(GradientLifetime.STAY, list(layer.parameters()))
    backward(collector, layer)
    assert collector.end(pending=False) >= 0


def test_an_error_that_nobody_asked_for_is_forgotten():
    layer, failing = torch.nn.Linear(2, 2), [True]
    collector = failed_reading(layer, failing)
    failing[0] = False
    collector.begin(GradientLifetime.STAY, list(layer.parameters()))
    collector.end(pending=False)


def test_gradients_that_are_gone_are_read_at_once_from_then_on():
    layer, reads = torch.nn.Linear(2, 2), []
    collector = ReadTiming(lambda: reads.append("read"))
    collector.begin(GradientLifetime.STAY, list(layer.parameters()))
    with pytest.raises(RuntimeError, match="gone"):
        collector.end(pending=True)
    collector.begin(GradientLifetime.STAY, list(layer.parameters()))
    backward(collector, layer)
    assert len(reads) == 2 + 1  # each parameter, and the end of the pass


def test_nothing_is_held_after_a_pass():
    layer = torch.nn.Linear(2, 2)
    collector = ReadTiming(lambda: None)
    collector.begin(GradientLifetime.STAY, list(layer.parameters()))
    backward(collector, layer)
    assert collector._last is not None
    collector.forget()
    assert collector._last is None
