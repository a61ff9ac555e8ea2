"""A connection that nobody waits for any more ends: threads left in torch abort the process when it ends."""

import threading

import pytest
import torch.distributed as dist

from unisono.exchange import store as message_store
from unisono.exchange.gloo_channel import Payload
from unisono.exchange.reconnect import ReconnectingChannel


def test_a_connection_that_is_given_up_leaves_no_thread_behind():
    started = threading.Event()

    def connect(era, start, given_up):
        started.set()
        message_store.wait_for_registrations(dist.HashStore(), 2, given_up)

    channel = ReconnectingChannel(connect, pytest.fail)
    channel.begin(0, 0)
    assert started.wait(5)
    channel.close()
    assert "unisono-connect" not in {thread.name for thread in threading.enumerate()}
    assert channel.idle


def test_only_at_the_very_end_a_connection_is_waited_for_that_cannot_be_called_off():
    """Else the listening thread would tell nothing meanwhile, not even what needs no directions."""
    began, come_back, ended = threading.Event(), threading.Event(), []

    def connect(era, start, given_up):
        began.set()
        come_back.wait(10)
        ended.append(era)
        raise message_store.RankLeft

    channel = ReconnectingChannel(connect, pytest.fail, most_held=2)
    channel.begin(0, 0)
    assert began.wait(5)
    assert [channel.send(Payload(step, 0, None)) for step in range(3)] == [True, True, False]
    assert (channel.broken, channel.idle, ended) == (True, True, [])
    threading.Timer(0.1, come_back.set).start()
    channel.close()
    assert ended == [0]


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
