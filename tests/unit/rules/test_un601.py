from unisono.rules.un601_worker_rejected import WorkerRejected
from unit.rules.build import judge, note, step


def test_a_rejected_worker():
    found = judge(WorkerRejected, note("rejected", 2, text="rank 2 was left out of 48 of the last 50 steps"))
    assert (found.severity, found.ranks) == ("warning", (2,))
    assert found.why == "rank 2 was left out of 48 of the last 50 steps"


def test_quiet():
    assert judge(WorkerRejected, step(1), note("acted", 2)) is None
