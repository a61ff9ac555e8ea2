"""Messages and registrations through the store: few questions, however many ranks there are."""

import threading

import pytest
import torch.distributed as dist

from unisono.exchange import store as message_store
from unisono.exchange.store import LONGEST, MessageStore, group_key, pace, wait_for_registrations
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
