"""Ranks as threads of one process, over real gloo groups and a store of their own: seconds instead of a launcher.

For what is not global to a process: the exchange, rank 0's part, the guard's rounds, resync.

    fleet = Fleet(4).fail_at(2, step=5)
    results = fleet.run(work)    # work(rank) on four threads
"""

from fleet.clock import Clock
from fleet.store import UnreliableStore
from fleet.threads import Fleet, InjectedError

__all__ = ["Clock", "Fleet", "InjectedError", "UnreliableStore"]
