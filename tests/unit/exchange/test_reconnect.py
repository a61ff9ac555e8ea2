"""A connection that nobody waits for any more ends: threads left in torch abort the process when it ends."""

import threading

import pytest
import torch.distributed as dist

from unisono.exchange import store as message_store
from unisono.exchange.reconnect import ReconnectingChannel


def test_a_connection_that_is_given_up_leaves_no_thread_behind():
    started = threading.Event()

    def connect(era, start, given_up):
        started.set()
        message_store.wait_for_registrations(dist.HashStore(), 2, given_up)

    channel = ReconnectingChannel(connect, pytest.fail)
    channel.begin(0, 0)
    assert started.wait(5)
    channel.end()
    assert "unisono-connect" not in {thread.name for thread in threading.enumerate()}
    assert channel.idle


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (message_store.RankLeft(), None),
        (TimeoutError("a rank did not come"), "a rank did not come"),
        (RuntimeError("no route"), "GLOO_SOCKET_IFNAME"),
    ],
)
def test_only_what_can_be_mended_is_told_and_the_network_only_where_it_may_be_at_fault(error, told):
    def connect(era, start, given_up):
        raise error

    complaints = []
    channel = ReconnectingChannel(connect, complaints.append)
    channel.begin(0, 0)
    while not channel.broken:
        channel.turn()
    assert [told in text for text in complaints] == ([] if told is None else [True])
    assert all(("GLOO" in text) == isinstance(error, RuntimeError) for text in complaints)
