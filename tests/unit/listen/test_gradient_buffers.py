"""Buffers that go round between the training thread and the listening thread."""

import torch

from unisono.listen.gradient_buffers import BufferRing


class Copy:
    """A copy that is under way until somebody says that it is done."""

    def __init__(self):
        self.done = False

    def query(self):
        return self.done


def test_there_are_no_more_buffers_than_allowed():
    ring = BufferRing(lambda: torch.zeros(1), most=2)
    first, second = ring.take(), ring.take()
    assert first is not second
    assert ring.take() is None
    ring.give_back(first)
    assert ring.take() is first


def test_a_buffer_comes_back_when_the_copy_into_it_is_done():
    ring, copies = BufferRing(lambda: torch.zeros(1), most=2), [Copy(), Copy()]
    buffers = [ring.take(), ring.take()]
    for buffer, copy in zip(buffers, copies, strict=True):
        ring.give_back_after(buffer, copy)
    assert ring.take() is None
    copies[0].done = copies[1].done = True
    assert {id(ring.take()), id(ring.take())} == set(map(id, buffers))
    assert ring.take() is None


def test_a_closed_ring_gives_nothing():
    ring = BufferRing(lambda: torch.zeros(1), most=2)
    ring.give_back(ring.take())
    ring.close()
    assert ring.take() is None
