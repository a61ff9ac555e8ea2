"""The exchange on a fleet: messages, announcements and directions of several ranks, and what becomes of lost ones."""

import json
import threading
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from fleet import Fleet
from fleet.listening import FIRST_RANK, Listeners, Readout, handover
from unisono.exchange import gloo_channel, reconnect, thread
from unisono.exchange.gloo_channel import PATIENCE, GlooChannel, Payload, Payloads
from unisono.exchange.reconnect import ReconnectingChannel
from unisono.exchange.store import SLOTS, MessageStore
from unisono.listen.listening_plan import Announcement
from unisono.listen.messages import RankStep
from unisono.measure.adapt_schedule import SHORTEST_RETRY

WORLD = 3


@pytest.fixture
def listeners(monkeypatch):
    listeners = Listeners(WORLD, monkeypatch)
    yield listeners
    listeners.end()


def boxes(fleet):
    made = [MessageStore(lambda rank=rank: fleet.stores[rank], rank, fleet.world) for rank in range(fleet.world)]
    for box in made:
        box.register({"host": f"h{box.rank}"})
    return made


def send(box, *steps, last=False):
    for step in steps:
        box.send([RankStep(step=step, time=0.0)], last=last)


def read(box, rank, limit=1_000):
    """All that is new of a rank: its steps, and how many messages were lost."""
    steps, lost = [], 0
    for _ in range(limit):
        fresh, gone = box.collect([rank])
        lost += gone
        if not fresh:
            return steps, lost
        steps += [signal.step for signal in fresh[rank].signals]
    raise AssertionError("it never ends")


def test_messages_of_all_ranks_arrive_on_rank_0_in_order():
    messages = 100
    fleet = Fleet(WORLD).late(2, step=50, seconds=0.05)
    made = boxes(fleet)
    taken, deadline = [0] * WORLD, time.monotonic() + 10

    def work(rank):
        if rank == 0:
            return collected()
        for step in range(messages):
            fleet.begins(step)
            # Nobody overtakes the reader by a whole ring.
            while step - taken[rank] > SLOTS // 2:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            send(made[rank], step, last=step == messages - 1)
        return None

    def collected():
        steps, lost = {rank: [] for rank in range(1, WORLD)}, 0
        while made[0].left != {1, 2} and time.monotonic() < deadline:
            fresh, gone = made[0].collect([1, 2])
            lost += gone
            for rank, message in fresh.items():
                steps[rank] += [signal.step for signal in message.signals]
                taken[rank] = len(steps[rank])
        return steps, lost

    steps, lost = fleet.run(work)[0]
    assert steps == {rank: list(range(messages)) for rank in (1, 2)}
    assert lost == 0


def test_messages_that_were_overwritten_before_they_were_read_are_counted():
    first, second, _ = boxes(Fleet(WORLD))
    send(second, *range(SLOTS + 5))
    steps, lost = read(first, 1)
    assert (steps, lost) == (list(range(SLOTS, SLOTS + 5)), SLOTS)
    send(second, 1_000)
    assert read(first, 1) == ([1_000], 0)


def test_a_message_that_vanished_costs_one_turn_of_the_ring_and_is_counted_with_it():
    fleet = Fleet(WORLD)
    first, second, _ = boxes(fleet)
    send(second, 0, 1)
    fleet.lose(1)
    send(second, 2, 3)
    assert fleet.stores[1].lost == 1
    assert read(first, 1) == ([0, 1], 0)
    send(second, *range(4, 2 + SLOTS + 3))
    steps, lost = read(first, 1)
    assert lost == SLOTS
    assert steps == list(range(2 + SLOTS, 2 + SLOTS + 3))


def test_messages_of_a_group_of_another_size_are_not_taken_for_this_ones():
    fleet = Fleet(WORLD)
    first, *_ = boxes(fleet)
    send(MessageStore(lambda: fleet.stores[1], 1, WORLD + 1), 0)
    assert read(first, 1) == ([], 0)
    assert first.left == set()


def test_who_has_said_goodbye_is_known():
    first, second, third = boxes(Fleet(WORLD))
    send(second, 0)
    send(third, 0, last=True)
    assert first.left == set()
    first.collect([1, 2])
    assert first.left == {2}


def test_a_late_comer_is_registered_and_learns_where_the_run_is(listeners):
    listeners.turn(0, 1)
    listeners.turn(0, 1)
    assert listeners.exchanges[1].run_facts["run_dir"] == "runs/1"
    assert sorted(listeners.exchanges[0].message_store.registrations()) == [0, 1]
    assert listeners.met == []
    assert not listeners.fleet.hash_store.check(["everybody"])
    listeners.turn()
    (met,) = listeners.met
    assert {rank: facts["rank"] for rank, facts in met.items()} == {rank: FIRST_RANK + rank for rank in range(WORLD)}
    assert listeners.fleet.hash_store.check(["everybody"])
    assert listeners.exchanges[2].run_facts["run_dir"] == "runs/1"


def test_a_rank_registers_once(listeners):
    for _ in range(3):
        listeners.turn(1)
    assert listeners.fleet.hash_store.add("came", 0) == 1


def test_announcements_reach_everybody_once_and_in_order(listeners):
    listeners.turn()
    taken = {rank: [] for rank in range(1, WORLD)}
    for rank, heard in taken.items():
        listeners.exchanges[rank].plan.apply = heard.append
    for start in (5, 6, 7):
        listeners.exchanges[0].message_store.announce(Announcement(start=start, end=start + 1))
    # Nobody asks at every turn while nothing is under way.
    listeners.turn(1, 2)
    assert taken == {1: [], 2: []}
    listeners.turn(1, 2, seconds=thread.UNASKED + 0.01)
    listeners.turn(1, 2, seconds=thread.UNASKED + 0.01)
    assert {rank: [one.start for one in heard] for rank, heard in taken.items()} == {1: [5, 6, 7], 2: [5, 6, 7]}


def test_who_posts_a_step_hears_announcements_in_the_same_turn(listeners):
    listeners.turn()
    listeners.exchanges[0].message_store.announce(Announcement(start=5, end=9))
    listeners.submit(0, 1)
    listeners.turn(1)
    assert listeners.exchanges[1].plan.in_burst(5)


def test_what_an_announcement_asks_for_is_done_by_whom_it_asks(listeners):
    listeners.turn()
    for exchange in listeners.exchanges:
        exchange._evidence_messages = SimpleNamespace(
            audit_of=lambda step: {"key": f"audit/{step}"} if step == 3 else None,
            batch_of=lambda step, rank: {"key": f"batch/{step}/{rank}"},
        )
    for announcement in (
        Announcement(start=5, keep=True),
        Announcement(start=5, audit_of=3),
        Announcement(start=5, audit_of=4),
        Announcement(start=5, batch_of=3, worker=2),
    ):
        for exchange in listeners.exchanges:
            exchange.take(announcement)
    assert listeners.saved == [0, 1, 2]
    keys = [[message["key"] for message in exchange._messages] for exchange in listeners.exchanges]
    assert keys == [["audit/3"], ["audit/3"], ["audit/3", f"batch/3/{FIRST_RANK + 2}"]]


def test_a_rank_without_steps_gives_a_sign_of_life_once_a_second(listeners):
    listeners.turn()
    box = listeners.exchanges[1].message_store
    sent = box.sent
    listeners.turn(1, seconds=thread.SIGN_OF_LIFE * 0.9)
    assert box.sent == sent
    listeners.turn(1, seconds=thread.SIGN_OF_LIFE * 0.2)
    assert box.sent == sent + 1


def test_what_could_not_be_sent_is_sent_when_the_store_is_back(listeners):
    listeners.turn()
    listeners.submit(0)
    with listeners.fleet.stores[1].broken(), pytest.raises(ConnectionError):
        listeners.turn(1)
    listeners.turn(0, 2)
    assert listeners.steps == []
    listeners.submit(1)
    listeners.turn()
    assert [record.step for record in listeners.steps] == [0, 1]
    assert listeners.steps[0].loss_W == (0.0, 1.0, 2.0)
    assert [signal.step for signal in listeners.kept[1]] == [0, 1]


def test_evidence_that_cannot_be_read_does_not_cost_the_step(listeners):
    listeners.turn()
    listeners.submit(0, facts={"odd": None})
    listeners.exchanges[1]._evidence_messages.take = lambda handover: 1 / 0
    listeners.turn()
    assert [record.step for record in listeners.steps] == [0]
    assert "evidence could not be read (ZeroDivisionError" in listeners.complaints[0]


def test_more_steps_than_fit_are_lost_and_counted_and_what_they_hold_is_let_go(listeners):
    exchange, readouts = listeners.exchanges[1], []
    for step in range(thread.LONGEST_QUEUE + 3):
        readouts.append(Readout(1))
        exchange.submit(handover(step, 1, readout=readouts[-1]))
    assert exchange.lost == 3
    assert [one.discarded for one in readouts[-4:]] == [0, 1, 1, 1]
    assert exchange.newest == thread.LONGEST_QUEUE + 2
    listeners.turn(1)
    assert [one.discarded for one in readouts] == [1] * len(readouts)


def test_steps_that_are_not_ready_wait_and_hold_their_followers(listeners):
    listeners.turn()
    slow = Readout(1)
    slow.ready = lambda: False
    listeners.exchanges[1].submit(handover(0, 1, readout=slow))
    listeners.exchanges[1].submit(handover(1, 1))
    listeners.turn(1)
    assert listeners.kept[1] == []
    slow.ready = lambda: True
    listeners.turn(1)
    assert [signal.step for signal in listeners.kept[1]] == [0, 1]


def test_directions_of_all_ranks_reach_rank_0(listeners):
    listeners.connect()
    for step in range(3):
        listeners.submit_heard(step)
    listeners.turn_until(lambda: len(listeners.steps) == 3)
    assert [record.step for record in listeners.steps] == [0, 1, 2]
    for record in listeners.steps:
        # The sketches of any two have half of their squared length in common.
        assert record.cos_WW[0][0] == pytest.approx(1.0)
        assert record.window_cos_W == pytest.approx((3**-0.5,) * 3)
    listeners.turn_until(lambda: all(exchange.channel.idle for exchange in listeners.exchanges))


def test_a_rank_that_could_not_listen_takes_its_turn_all_the_same(listeners):
    listeners.connect()
    listeners.submit_heard(0, 0, 1)
    listeners.submit(0, 2, due=True)
    listeners.submit_heard(1)
    listeners.turn_until(lambda: len(listeners.steps) == 2)
    assert listeners.exchanges[2].lost == 1
    assert listeners.steps[0].norm_W == pytest.approx((1.0, 2**0.5, None), nan_ok=True)
    assert listeners.steps[1].window_cos_W[2] is not None
    assert listeners.notes == []


def test_gradients_that_are_not_finite_are_not_sent(listeners):
    sent = []
    listeners.turn()
    listeners.exchanges[1].channel.send = lambda payload: sent.append(payload) or True
    listeners.exchanges[1].submit(handover(0, 1, due=True, readout=Readout(1, broken=2)))
    listeners.exchanges[1].submit(handover(1, 1, due=True, readout=Readout(1)))
    listeners.turn(1)
    assert [payload.body is None for payload in sent] == [True, False]


def test_a_broken_channel_is_opened_again_for_all_and_directions_are_heard_again(listeners):
    listeners.connect()
    listeners.submit_heard(0)
    listeners.turn_until(lambda: len(listeners.steps) == 1)
    # Its end of the connection closes.
    listeners.exchanges[1].channel.end()
    listeners.submit_heard(1, 0, 2)
    listeners.submit(1, 1)
    listeners.turn_until(lambda: len(listeners.steps) == 2)
    assert listeners.steps[1].cos_WW == ()
    assert listeners.notes == [("directions-lost", ())]
    listeners.turn(seconds=SHORTEST_RETRY - 0.1)
    assert not any(exchange.channel.era == 1 for exchange in listeners.exchanges)
    listeners.turn_until(lambda: all(one.channel.era == 1 for one in listeners.exchanges), seconds=0.3)
    start = json.loads(listeners.fleet.hash_store.get("plan/0"))["start"]
    assert start > 1
    listeners.turn_until(listeners.connected)
    for step in range(2, start):
        listeners.submit(step)
    listeners.submit_heard(start)
    listeners.turn_until(lambda: len(listeners.steps) == start + 1)
    assert listeners.steps[-1].cos_WW[0][0] == pytest.approx(1.0)
    assert listeners.notes == [("directions-lost", ()), ("directions-back", ())]


def test_directions_that_a_rank_does_not_send_are_waited_for_by_the_clock_only(listeners):
    listeners.connect()
    listeners.submit_heard(0, 0, 1)
    listeners.submit(0, 2)
    listeners.turn(seconds=0.1)
    listeners.turn(seconds=PATIENCE - 0.1)
    assert not listeners.exchanges[0].channel.broken
    listeners.turn(seconds=0.2)
    assert listeners.exchanges[0].channel.broken
    listeners.turn()
    assert [record.step for record in listeners.steps] == [0]
    assert listeners.notes[0] == ("directions-lost", ())


def test_ranks_that_speak_of_different_steps_break_off(listeners):
    listeners.connect()
    listeners.submit_heard(0, 0, 1)
    listeners.submit_heard(1, 2)
    listeners.turn_until(lambda: listeners.exchanges[0].channel.broken)
    assert listeners.rank0.assembler._open_steps[0].directions is None


def test_goodbyes_of_real_threads_take_everything_along():
    listeners = Listeners(WORLD)
    for exchange in listeners.exchanges:
        exchange.channel.begin(0, 0)
        exchange.start()
    for step in range(20):
        listeners.submit_heard(step)
    closing = [threading.Thread(target=exchange.close, kwargs={"patience": 10}) for exchange in listeners.exchanges]
    for each in closing:
        each.start()
    for each in closing:
        each.join(30)
    assert [record.step for record in listeners.steps] == list(range(20))
    assert [record.loss_W for record in listeners.steps] == [(0.0, 1.0, 2.0)] * 20
    assert sorted(listeners.finished) == [0, 1, 2]
    assert [exchange.lost for exchange in listeners.exchanges] == [0] * WORLD
    assert listeners.exchanges[0].message_store.left == {0, 1, 2}
    assert listeners.notes == []
    assert listeners.complaints == []
    assert all(exchange.channel.idle for exchange in listeners.exchanges)


def test_what_is_still_on_its_way_from_the_device_is_waited_for_at_the_end_but_not_for_ever(listeners):
    listeners.turn()
    exchange, soon, never = listeners.exchanges[1], Readout(1), Readout(1)
    begun = listeners.clock.now
    soon.ready = lambda: listeners.clock.now > begun + 1
    never.ready = lambda: False
    exchange.submit(handover(0, 1, readout=soon))
    exchange.submit(handover(1, 1, readout=never))
    exchange._patience = 3.0
    exchange._finish()
    assert [signal.step for signal in listeners.kept[1]] == [0]
    assert begun + 3 <= listeners.clock.now < begun + 4


class FakeChannel:
    def __init__(self, start=0):
        self.start, self.sent, self.ended, self.done, self.is_stuck, self.error = start, [], 0, [], False, None
        self.idle = True

    def send(self, payload):
        self.sent.append(payload.step)

    def poll(self):
        if self.error is not None:
            raise self.error
        return self.done

    def stuck(self):
        return self.is_stuck

    def end(self):
        self.ended += 1


def opened(channel, payloads=(), start=0):
    """A reconnecting channel, and whether each payload was taken while it opened."""
    gate, said = threading.Event(), []

    def connect(era, begins_at, given_up):
        while not (gate.is_set() or given_up.is_set()):
            time.sleep(0.002)
        if isinstance(channel, Exception):
            raise channel
        return channel

    reconnecting = ReconnectingChannel(connect, said.append)
    reconnecting.begin(1, start)
    taken = [reconnecting.send(Payload(step, 0, None)) for step in payloads]
    assert reconnecting.idle == reconnecting.broken
    opening = reconnecting._opening
    gate.set()
    if opening is not None:
        opening.join(5)
    return reconnecting, taken, said


def test_what_is_sent_while_the_channel_opens_is_held_from_its_first_step_on():
    channel = FakeChannel(start=5)
    reconnecting, taken, _ = opened(channel, (3, 4, 5, 6), start=5)
    assert taken == [False, False, True, True]
    assert channel.sent == []
    assert reconnecting.turn() == []
    assert channel.sent == [5, 6]
    assert reconnecting.idle
    assert [reconnecting.send(Payload(step, 0, None)) for step in (4, 7)] == [False, True]
    assert channel.sent == [5, 6, 7]


def test_a_channel_that_takes_too_long_to_open_is_given_up():
    reconnecting, taken, _ = opened(FakeChannel(), range(reconnect.MOST_HELD + 1))
    assert taken == [True] * reconnect.MOST_HELD + [False]
    assert reconnecting.broken
    assert reconnecting.idle
    assert reconnecting.turn() == []


def test_a_channel_that_cannot_be_opened_is_complained_of_and_what_was_held_is_dropped():
    reconnecting, _, said = opened(OSError("no route"), (0, 1))
    assert reconnecting.turn() == []
    assert reconnecting.broken
    assert "no route" in said[0]
    assert not reconnecting._held
    assert not reconnecting.send(Payload(2, 0, None))


@pytest.mark.parametrize("trouble", ["stuck", "error"])
def test_a_channel_that_fails_or_stands_still_is_ended_once_and_a_new_era_begins_afresh(trouble):
    channel = FakeChannel()
    reconnecting, *_ = opened(channel)
    channel.done = [(0, None)]
    assert reconnecting.turn() == [(0, None)]
    assert not reconnecting.broken
    channel.is_stuck, channel.error = trouble == "stuck", RuntimeError("gone") if trouble == "error" else None
    assert reconnecting.turn() == ([(0, None)] if trouble == "stuck" else [])
    assert reconnecting.broken
    assert channel.ended == 1
    assert not reconnecting.send(Payload(1, 0, None))
    reconnecting.begin(2, 10)
    assert (reconnecting.era, reconnecting.broken) == (2, False)
    reconnecting._opening.join(5)
    reconnecting.end()


def test_too_much_on_its_way_on_rank_0_is_stuck(monkeypatch):
    monkeypatch.setattr(gloo_channel, "MOST_PENDING_BYTES", 100)
    store = dist.HashStore()

    def work(rank):
        channel = GlooChannel(store, rank, 2, 40, 0, 0)
        if rank == 1:
            return channel
        found = []
        for step in range(2):
            channel.send(Payload(step, 0, None))
            found.append(channel.stuck())
        return channel, found

    (first, found), second = Fleet(2).run(work)
    assert found == [False, True]
    for step in range(2):
        second.send(Payload(step, 0, torch.full((40,), step + 1, dtype=torch.uint8)))
    done, deadline = [], time.monotonic() + 5
    while len(done) < 2 and time.monotonic() < deadline:
        done += first.poll()
    assert [step for step, _ in done] == [0, 1]
    payloads = [Payloads.from_packets(packets_WP) for _, packets_WP in done]
    assert [one.sent_W.tolist() for one in payloads] == [[False, True]] * 2
    assert [int(one.body_WB[1, 0]) for one in payloads] == [1, 2]
    assert first.idle
    assert not first.stuck()
