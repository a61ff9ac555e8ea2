"""A fleet: one thread a rank, each with a gloo group of its own that `torch.distributed` knows as the default one."""

import contextlib
import gc
import threading
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from fleet.store import UnreliableStore

GLOO = dist.ProcessGroup.BackendType.GLOO
CPU = torch.device("cpu")


class InjectedError(RuntimeError):
    """What `fail_at` raises."""


class _World(threading.local):
    """What torch keeps once a process, kept once a thread: every rank has a default group of its own."""

    def __init__(self):
        self.default_pg = None
        self.pg_map, self.pg_names, self.pg_group_ranks, self.pg_backend_config = {}, {}, {}, {}
        self.tags_to_pg, self.pg_to_tag, self.pg_coalesce_state, self.comms, self.group_count = {}, {}, {}, [], 0

    def enter(self, group, store):
        self.default_pg = group
        self.pg_map[group] = ("gloo", store)
        self.pg_names[group] = "fleet"
        self.pg_group_ranks[group] = {rank: rank for rank in range(group.size())}
        self.pg_backend_config[group] = "cpu:gloo"

    def leave(self):
        self.__init__()


class Fleet:
    """
    :param timeout: Seconds after which a collective that nobody answers fails. A rank that fails is noticed at once.
    :param limit: Seconds after which a fleet that has not come back fails the test.
    """

    def __init__(self, world, timeout=20.0, limit=60.0):
        self.world = world
        self.hash_store = dist.HashStore()
        self.stores = [UnreliableStore(self.hash_store) for _ in range(world)]
        self._timeout, self._limit = timedelta(seconds=timeout), limit
        self._failures, self._delays = set(), {}
        self._here, self._runs = threading.local(), 0

    def fail_at(self, rank, step):
        self._failures.add((rank, step))
        return self

    def late(self, rank, step, seconds):
        self._delays[rank, step] = seconds
        return self

    def lose(self, rank, messages=1):
        """The rank's next messages do not reach the store."""
        self.stores[rank].lose(messages)
        return self

    def begins(self, step):
        """Called by a rank's work: this is where it fails or is late."""
        place = (self._here.rank, step)
        if place in self._delays:
            time.sleep(self._delays[place])
        if place in self._failures:
            raise InjectedError(f"rank {place[0]} fails at step {step}")

    @property
    def group(self):
        """This thread's."""
        return dist.group.WORLD

    def run(self, work):
        """What `work(rank)` returned, by rank. What one raised is raised here, first of all what was not meant."""
        outcomes = self.outcomes(work)
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if errors:
            # A rank that fails makes the others fail in their collectives: theirs is not the cause.
            raise next((error for error in errors if type(error) is not RuntimeError), errors[0])
        return outcomes

    def outcomes(self, work):
        """By rank, what it returned or raised."""
        self._runs += 1
        outcomes = [TimeoutError(f"rank {rank} has not come back") for rank in range(self.world)]
        ended = threading.Barrier(self.world)
        store = dist.PrefixStore(f"fleet/{self._runs}", self.hash_store)
        threads = [
            threading.Thread(target=self._be, args=(rank, work, store, outcomes, ended), daemon=True)
            for rank in range(self.world)
        ]
        with _worlds_apart():
            deadline = time.monotonic() + self._limit
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        return outcomes

    def _be(self, rank, work, store, outcomes, ended):
        self._here.rank = rank
        world = c10d._world
        try:
            world.enter(_open_group(store, rank, self.world, self._timeout), store)
            outcomes[rank] = work(rank)
            # Not before: a group that is closed fails those who still wait in it.
            with contextlib.suppress(threading.BrokenBarrierError):
                ended.wait(self._limit)
        except Exception as error:
            outcomes[rank] = error
            ended.abort()
            # What the frames hold goes, and the group with it: the others see the connection close.
            traceback.clear_frames(error.__traceback__)
            world.leave()
            gc.collect()
        finally:
            world.leave()


def _open_group(store, rank, size, timeout):
    """As `new_group` makes it, without its list of names, which a process has once."""
    group = dist.ProcessGroup(store, rank, size)
    group._register_backend(CPU, GLOO, dist.ProcessGroupGloo(store, rank, size, timeout))
    group._set_default_backend(GLOO)
    return group


@contextlib.contextmanager
def _worlds_apart():
    before, c10d._world = c10d._world, _World()
    try:
        yield
    finally:
        c10d._world = before
