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
