"""Who went first: not those who lost their connection to it, nor those whom the launcher then sent away."""

import pytest

from unisono.records import DepartureRecord
from unisono.records.departure_order import first_to_go, in_words, latest_of_each, lost_a_peer, stopped_together

RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:2772: Connection reset by peer"


def went(rank, how, detail="", time=100.0, told_by=None, step=19):
    return DepartureRecord(1, step, time, rank, how, detail, rank if told_by is None else told_by)


def first(*departures, world=4):
    return [one.rank for one in first_to_go(departures, world)]


@pytest.mark.parametrize(
    "text",
    [
        RESET,
        "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:410",
        "DistNetworkError: The client socket has failed to connect",
        "DistBackendError: NCCL error: remote process exited or there was a network error",
        "RuntimeError: Application timeout caused pair closure",
        "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
        "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms",
    ],
)
def test_exceptions_that_another_ranks_end_has_caused(text):
    assert lost_a_peer(went(0, "exception", text))


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: as planned",
        "OutOfMemoryError: CUDA out of memory",
        "KeyError: 'x'",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "ConnectionResetError: Caught ConnectionResetError in DataLoader worker process 0.",
        "MaxRetryError: HTTPSConnectionPool(host='s3'): Max retries exceeded (Connection refused)",
        "OSError: failed to connect to s3 (gloo)",
        "RuntimeError: cannot upload: failed to connect to s3",
        "RuntimeError: [gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 1024 vs 512",
        "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, invalid usage",
    ],
)
def test_exceptions_of_its_own(text):
    assert not lost_a_peer(went(0, "exception", text))
    assert first(went(0, "exception", text), went(1, "exception", RESET)) == [0]


@pytest.mark.parametrize("how", ["lost", "exit", "silence"])
def test_the_others_fail_in_consequence(how):
    assert first(went(0, "exception", RESET), went(2, how, told_by=0), went(1, "signal", "SIGTERM")) == [2]


def test_a_signal_to_one_rank_is_the_cause_of_connections_that_are_lost():
    assert first(went(0, "exception", RESET), went(1, "signal", "SIGTERM")) == [1]


def test_of_two_signals_the_first_counts_if_it_came_visibly_earlier():
    assert first(went(0, "signal", time=100.4), went(1, "signal", time=100.0)) == [1]
    assert first(went(0, "signal", time=100.1), went(1, "signal", time=100.0)) == []


def test_a_job_that_is_stopped_as_a_whole():
    together = [went(rank, "signal", "SIGTERM", time=100 + rank / 100) for rank in range(4)]
    assert stopped_together(together, 4)
    assert stopped_together([*together[:3], went(3, "exception", RESET)], 4)
    assert stopped_together(together[:1], world=1)
    assert not stopped_together(together[:1], world=2)
    assert not stopped_together([went(0, "exception", RESET)], 2)


def test_a_job_that_ends_as_a_whole_with_an_exit_code():
    """Nobody went before the others; with four of which one is left, three did."""
    alike = [went(rank, "exit", "exit code 3", time=100 + rank) for rank in range(4)]
    assert first(*alike) == []
    assert stopped_together(alike, 4)
    assert first(*alike[1:]) == [1, 2, 3]
    assert not stopped_together(alike[1:], 4)
    assert first(*alike[:3], went(3, "exit", "exit code 1")) == [0, 1, 2, 3]


def test_nobody_is_named_where_the_order_is_not_known():
    assert first(went(0, "exception", RESET), went(1, "exception", RESET)) == []
    assert first(went(0, "exception", "FoolishError: what?"), went(1, "lost", time=100.5, told_by=0)) == []
    assert first(went(0, "exception", "FoolishError: what?"), went(1, "lost", time=200.0, told_by=0)) == [0]


def test_several_that_go_by_themselves_are_all_named():
    assert first(went(0, "exception", "ValueError: x"), went(3, "exception", "ValueError: x")) == [0, 3]


def test_a_ranks_own_word_counts_before_what_others_saw_of_it():
    own, seen, silent = went(1, "exception", RESET), went(1, "lost", told_by=0), went(1, "silence", told_by=0)
    assert latest_of_each([silent, seen, own]) == [own]
    assert latest_of_each([own, seen, silent]) == [own]
    assert latest_of_each([silent, seen]) == [seen]


def test_in_words():
    assert in_words(went(1, "exception", "ValueError: x"), "node7") == (
        "rank 1 (on node7) was ended by an exception after step 19: ValueError: x"
    )
    assert in_words(went(0, "exit", step=-1)) == "rank 0 ended by itself before its first step"
