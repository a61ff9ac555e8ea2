import time

import torch

from unisono.lab.bench.timing import Stopwatch


def test_works_take_turns_as_often_as_at_least_asked():
    calls = []
    stopwatch = Stopwatch(torch.device("cpu"), seconds=0.0, fewest=3)
    stopwatch.by_turns({"one": lambda: calls.append(1), "two": lambda: calls.append(2)})
    assert calls == [1, 2] * 4


def test_no_more_turns_than_at_most_asked():
    calls = []
    Stopwatch(torch.device("cpu"), seconds=60.0, fewest=1, most=4).by_turns({"one": lambda: calls.append(1)})
    assert len(calls) == 5


def test_times_are_milliseconds():
    stopwatch = Stopwatch(torch.device("cpu"), seconds=0.0)
    assert stopwatch.by_turns({"sleep": lambda: time.sleep(0.005)})["sleep"] >= 5
