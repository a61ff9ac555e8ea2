"""Resync on a fleet of threads: who differs takes over the majority's bits, and nobody else is touched."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fleet import Fleet, InjectedError
from unisono.act.actions import resync_transfer
from unisono.act.actions.resync import resync

TEMPLATE = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
TENSORS = 5


class Replica:
    """The same on every rank: trained for two steps on the same inputs."""

    def __init__(self, group):
        self.group = group
        self.model = copy.deepcopy(TEMPLATE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(1)
        for _ in range(2):
            self.optimizer.zero_grad()
            self.model(torch.randn(6, 3, generator=generator)).square().mean().backward()
            self.optimizer.step()

    def parts(self):
        state = [self.optimizer.state.get(one, {}) for one in self.model.parameters()]
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
        ]
        return [one.detach() for one in self.model.state_dict().values()], state, groups

    def bits(self):
        tensors, states, groups = self.parts()
        remembered = [(key, raw(value)) for state in states for key, value in sorted(state.items())]
        return repr(([raw(one) for one in tensors], remembered, groups))

    def resync(self, **options):
        return resync(self.group, self.model, [self.optimizer], **options)


def raw(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8).tolist()


def shift(replica):
    with torch.no_grad():
        replica.model[0].weight[1, 1] += 0.25


def one_bit(replica):
    replica.model[2].weight.data.view(torch.int32)[0, 0] ^= 1


def lost(replica):
    replica.model[0].bias.data[2] = torch.nan


def statistics(replica):
    replica.model[1].running_mean += 1
    replica.model[1].num_batches_tracked += 3


def averages(replica):
    replica.optimizer.state[replica.model[0].weight]["exp_avg"][0, 0] *= 2


def counter(replica):
    replica.optimizer.state[replica.model[2].weight]["step"] += 1


def forgotten(replica):
    replica.optimizer.state.clear()


def rate(replica):
    replica.optimizer.param_groups[0]["lr"] = 0.5


def everything(replica):
    for fault in (shift, statistics, averages):
        fault(replica)


FAULTS = {
    # What is done to whom; then worker, by whom, parameters, buffers, states.
    "weights": ({1: shift}, [(1, 0, 1, 0, 0)]),
    "one bit": ({2: one_bit}, [(2, 0, 1, 0, 0)]),
    "not a number": ({3: lost}, [(3, 0, 1, 0, 0)]),
    "buffers": ({3: statistics}, [(3, 0, 0, 2, 0)]),
    "optimizer": ({2: averages}, [(2, 0, 0, 0, 1)]),
    "counter": ({1: counter}, [(1, 0, 0, 0, 1)]),
    "empty optimizer": ({1: forgotten}, [(1, 0, 0, 0, TENSORS)]),
    "settings": ({2: rate}, [(2, 0, 0, 0, 1)]),
    "all kinds": ({2: everything}, [(2, 0, 1, 2, 1)]),
    "the first is wrong": ({0: everything}, [(0, 1, 1, 2, 1)]),
    "two of four": ({2: shift, 3: shift}, [(2, 0, 1, 0, 0), (3, 0, 1, 0, 0)]),
    "two wrong ones that differ": ({0: shift, 3: one_bit}, [(0, 1, 1, 0, 0), (3, 1, 1, 0, 0)]),
    "each in something": (
        {0: shift, 1: averages, 2: statistics},
        [(0, 3, 1, 0, 0), (1, 3, 0, 0, 1), (2, 3, 0, 2, 0)],
    ),
}


def repaired(fleet, faults, **options):
    """By rank: bits that were right, those after, whether they were touched, and what was told."""

    def work(rank):
        replica = Replica(fleet.group)
        right = replica.bits()
        faults.get(rank, lambda replica: None)(replica)
        before = replica.bits()
        memory = [one.data_ptr() for one in replica.model.state_dict().values()]
        result = replica.resync(**options)
        assert memory == [one.data_ptr() for one in replica.model.state_dict().values()]
        after = replica.bits()
        again = replica.resync(**options)
        assert again.overwritten == ()
        return right, after, before != after, result

    return fleet.run(work)


@pytest.mark.parametrize("case", FAULTS)
def test_who_differs_takes_over_the_majoritys_bits_and_nobody_else_is_touched(case):
    faults, expected = FAULTS[case]
    ranks = repaired(Fleet(4), faults)
    assert all(right == after for right, after, *_ in ranks), "not what it was before the fault"
    assert {rank for rank, (_, _, touched, _) in enumerate(ranks) if touched} == set(faults)
    results = [result for *_, result in ranks]
    assert len(set(map(repr, results))) == 1, "told differently"
    found = [(one.worker, one.by, one.parameters, one.buffers, one.states) for one in results[0].overwritten]
    assert found == expected


def test_a_tie_goes_to_the_first_worker_even_where_it_is_wrong():
    (right, after, touched, result), (_, other, _, _) = repaired(Fleet(2), {0: shift})
    assert not touched
    assert after == other
    assert after != right
    assert [(one.worker, one.by) for one in result.overwritten] == [(1, 0)]
    assert result.overwritten[0].largest == pytest.approx(0.25)


def test_where_all_differ_the_first_worker_counts():
    def fault(amount):
        return lambda replica: replica.model[0].bias.data.add_(amount)

    ranks = repaired(Fleet(3), {1: fault(0.5), 2: fault(2.0)})
    assert len({after for _, after, *_ in ranks}) == 1
    assert not ranks[0][2]
    assert [one.largest for one in ranks[1][3].overwritten] == [pytest.approx(0.5), pytest.approx(2.0)]


def test_of_equal_replicas_nothing_is_sent(monkeypatch):
    sent = []
    broadcast = dist.broadcast
    monkeypatch.setattr(dist, "broadcast", lambda *arguments, **named: sent.append(1) or broadcast(*arguments, **named))
    ranks = repaired(Fleet(3), {})
    assert sent == []
    assert all(right == after and not touched for right, after, touched, _ in ranks)
    assert ranks[0][3].sentence(range(3)) == "all replicas are equal"
    repaired(Fleet(3), {1: shift})
    assert len(sent) == 3, "one message, on each of three"


def test_what_does_not_fit_into_one_message_goes_in_several(monkeypatch):
    monkeypatch.setattr(resync_transfer, "AT_ONCE", 64)
    for right, after, *_ in repaired(Fleet(3), {2: lambda replica: (everything(replica), one_bit(replica))}):
        assert right == after


def test_statistics_that_each_worker_keeps_for_itself_are_left_alone():
    ranks = repaired(Fleet(3), {1: statistics}, buffers=False)
    assert [touched for *_, touched, _ in ranks] == [False] * 3
    assert ranks[1][0] != ranks[1][1]


def test_buffers_of_other_shapes_are_left_alone_and_the_rest_is_repaired():
    def grown(replica):
        replica.model[1].running_mean = torch.zeros(9)
        shift(replica)

    def work(rank):
        replica = Replica(fleet.group)
        weights = raw(replica.model[0].weight)
        if rank == 2:
            grown(replica)
        return replica.resync(), raw(replica.model[0].weight) == weights, replica.model[1].running_mean.shape[0]

    fleet = Fleet(3)
    results = fleet.run(work)
    assert [(equal, length) for _, equal, length in results] == [(True, 4), (True, 4), (True, 9)]
    assert results[0][0].left_alone == ("buffers have other shapes on some workers and were left alone",)
    assert [(one.worker, one.parameters, one.buffers) for one in results[0][0].overwritten] == [(2, 1, 0)]


def test_other_parameters_on_one_worker_are_refused_by_all_and_nothing_changes():
    def work(rank):
        replica = Replica(fleet.group)
        if rank == 1:
            replica.model.add_module("more", nn.Linear(2, 2))
        if rank == 2:
            shift(replica)
        before = replica.bits()
        with pytest.raises(RuntimeError, match="should have the same parameters") as caught:
            replica.resync()
        return "on rank 1 than on rank 0" in str(caught.value), replica.bits() == before

    fleet = Fleet(3)
    assert fleet.run(work) == [(True, True)] * 3


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("call", [1, 2, 3, 5, 7, 9])
def test_a_worker_that_dies_in_a_resync_makes_all_others_fail(victim, call, monkeypatch):
    """Call 1 is the first message, 2 and 3 are about parameters, then come buffers and the optimizer's state."""
    counts = [0] * 3
    for name in ("broadcast", "all_gather"):
        monkeypatch.setattr(dist, name, dying(getattr(dist, name), counts, victim, call))

    def work(rank):
        replica = Replica(fleet.group)
        if rank == 2:
            everything(replica)
        replica.resync()

    fleet = Fleet(3)
    outcomes = fleet.outcomes(work)
    assert [type(outcome) for outcome in outcomes] == [
        InjectedError if rank == victim else RuntimeError for rank in range(3)
    ]


def dying(collective, counts, victim, call):
    """Raises on the victim, before its collective of this number."""

    def called(*arguments, **named):
        rank = dist.get_rank()
        counts[rank] += 1
        if (rank, counts[rank]) == (victim, call):
            raise InjectedError
        return collective(*arguments, **named)

    return called
