"""Messages and registrations through the store: few questions, however many ranks there are."""

import threading

import pytest
import torch.distributed as dist

from unisono.exchange import store as message_store
from unisono.exchange.store import (
    LONGEST,
    MessageStore,
    RankLeft,
    StoreConnections,
    enter_together,
    group_key,
    pace,
    wait_for_registrations,
)
from unisono.listen.messages import RankStep

WORLD = 200


class Counting:
    """A store that counts what it is asked."""

    def __init__(self):
        self.store, self.asked = dist.HashStore(), 0

    def __getattr__(self, name):
        def ask(*arguments):
            self.asked += 1
            return getattr(self.store, name)(*arguments)

        return ask


class Kept:
    """A store that outlives the ranks."""

    def __init__(self):
        self.store = dist.HashStore()

    def clone(self):
        return self.store


@pytest.fixture
def store():
    return Counting()


def boxes(store, world=WORLD):
    return [MessageStore(lambda: store, rank, world) for rank in range(world)]


def register(ranks):
    for box in ranks:
        box.register({"host": f"h{box.rank}"})


def test_greetings_take_few_questions(store):
    ranks = boxes(store)
    register(ranks)
    store.asked = 0
    registrations = ranks[0].registrations()
    assert registrations == {rank: {"host": f"h{rank}"} for rank in range(WORLD)}
    assert store.asked <= 4
    store.asked = 0
    assert ranks[0].registrations() == registrations
    assert store.asked == 1


def test_late_comers_are_met_later(store):
    ranks = boxes(store)
    register(ranks[:150])
    assert sorted(ranks[0].registrations()) == list(range(150))
    register(ranks[150:])
    assert len(ranks[0].registrations()) == WORLD


def test_a_number_without_a_greeting_holds_nobody_up(store):
    ranks = boxes(store, 4)
    register(ranks[:2])
    store.add("came", 1)
    register(ranks[2:])
    assert sorted(ranks[0].registrations()) == [0, 1, 2, 3]
    assert sorted(ranks[0].registrations()) == [0, 1, 2, 3]


def test_all_wait_until_rank_0_has_met_everybody(store, monkeypatch):
    monkeypatch.setattr(message_store, "REGISTRATION_PATIENCE", 0.05)
    ranks = boxes(store, 2)
    register(ranks[:1])
    ranks[0].registrations()
    with pytest.raises(TimeoutError):
        wait_for_registrations(store, 2, threading.Event())
    register(ranks[1:])
    ranks[0].registrations()
    wait_for_registrations(store, 2, threading.Event())


def entering(store, given_up, era=0):
    """For each rank in a thread of its own: whether it has entered."""
    entered = [None] * len(given_up)

    def enter(rank):
        try:
            enter_together(store, era, len(given_up), given_up[rank])
            entered[rank] = True
        except RankLeft:
            entered[rank] = False

    threads = [threading.Thread(target=enter, args=(rank,)) for rank in range(len(given_up))]
    return threads, entered


def events(world):
    return [threading.Event() for _ in range(world)]


def test_all_enter_when_all_have_come():
    threads, entered = entering(dist.HashStore(), events(3))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entered == [True] * 3


def test_nobody_enters_when_one_has_left_before_the_last_came():
    given_up = events(3)
    threads, entered = entering(dist.HashStore(), given_up)
    threads[0].start()
    given_up[0].set()
    threads[0].join()
    for thread in threads[1:]:
        thread.start()
    for thread in threads[1:]:
        thread.join()
    assert entered == [False] * 3


def test_who_gives_up_too_late_enters_with_the_others():
    given_up = events(2)
    store = dist.HashStore()
    threads, entered = entering(store, given_up)
    threads[0].start()
    while not store.check(["meeting/0/arrived"]):
        pass
    enter_together(store, 0, 2, threading.Event())
    given_up[0].set()
    threads[0].join()
    assert entered[0]


@pytest.mark.parametrize("seed", range(20))
def test_all_or_none_enter_whenever_somebody_gives_up(seed):
    """Threads race: whatever the order, no rank is left alone in a connection that waits for all."""
    given_up, store = events(4), dist.HashStore()
    threads, entered = entering(store, given_up, era=seed)
    for rank, thread in enumerate(threads):
        if rank == seed % 4:
            given_up[rank].set()
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(entered)) == 1


def test_a_rank_that_does_not_come_is_not_waited_for_forever(monkeypatch):
    monkeypatch.setattr(message_store, "REGISTRATION_PATIENCE", 0.05)
    with pytest.raises(TimeoutError, match="did not come"):
        enter_together(dist.HashStore(), 0, 2, threading.Event())


def test_messages_of_all_ranks_come_with_one_question(store):
    ranks = boxes(store)
    register(ranks)
    for box in ranks:
        box.send([RankStep(step=box.rank, time=0.0)], [{"key": "a"}] if box.rank == 7 else [])
    store.asked = 0
    rank_messages, lost = ranks[0].collect(list(range(WORLD)))
    assert store.asked == 1
    assert lost == 0
    assert [rank_messages[rank].signals[0].step for rank in range(WORLD)] == list(range(WORLD))
    assert rank_messages[7].messages == [{"key": "a"}]
    assert ranks[0].collect(list(range(WORLD))) == ({}, 0)


@pytest.mark.parametrize(("world", "seconds"), [(2, 0.0), (64, 0.0), (1_000, 0.2), (4_000, 0.8), (100_000, 1.0)])
def test_very_many_ranks_write_less_often(world, seconds):
    assert pace(world) == pytest.approx(seconds)


def test_keys_stay_short_and_tell_groups_apart():
    assert group_key([0, 1, 7]) == "0-1-7"
    large = [group_key(range(4_096)), group_key(range(4_095)), group_key(range(1, 4_097))]
    assert len(set(large)) == 3
    assert max(map(len, large)) <= LONGEST
    assert group_key(list(range(4_096))) == large[0]


def test_a_restarted_attempt_reads_nothing_of_the_one_before(monkeypatch):
    """A launcher may keep the store when it starts the ranks again."""
    monkeypatch.delenv("GROUP_WORLD_SIZE", raising=False)
    kept, stores = Kept(), []
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: kept)
    for restarts in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        stores.append(StoreConnections([0, 1], 0).for_messages())
    stores[0].set("run", "the first")
    assert not stores[1].check(["run"])
    stores[1].set("run", "the second")
    assert stores[0].get("run") == b"the first"


def test_hosts_that_count_restarts_differently_meet(monkeypatch):
    kept, stores = Kept(), []
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: kept)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    for restarts in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        stores.append(StoreConnections([0, 1], 0).for_messages())
    stores[0].set("run", "here")
    assert stores[1].get("run") == b"here"
