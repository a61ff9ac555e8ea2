"""A diagnosis holds no more after a million records than after a few thousand."""

import gc
import sys
from types import FunctionType, ModuleType

from unisono.diagnose.engine import Diagnosis
from unit.diagnose.rules.build import ALL, coverage, note
from unit.diagnose.rules.streams import Run, attempt

SETTLED, LAST = 3_000, 8_000
BYTES_PER_RECORD = 5.5
"""5 MB in the 900,000 records after the first 100,000."""


def stream():
    """Healthy steps, now and then the end of an epoch and a word from unisono itself."""
    yield attempt(4)
    for record in Run(steps=LAST, extra={"audits": ALL, "parts": 1}).records():
        yield record
        if record.step % 100 == 99:
            yield coverage(
                record.step,
                epoch=record.step // 100,
                drawn_W=(400,) * 4,
                distinct_W=(400.0,) * 4,
                distinct=1600.0,
                dataset=1600,
            )
            yield note("returned", 1, at=record.step)


def held_bytes(root):
    """All that hangs on an object, but for code."""
    found, waiting = {}, [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) not in found and not isinstance(thing, type | ModuleType | FunctionType):
            found[id(thing)] = sys.getsizeof(thing)
            waiting += gc.get_referents(thing)
    return sum(found.values())


def test_a_diagnosis_does_not_grow_with_the_run():
    diagnosis = Diagnosis()
    for record in stream():
        diagnosis.see(record)
        if record.kind == "step" and record.step == SETTLED - 1:
            early = held_bytes(diagnosis)
    assert held_bytes(diagnosis) - early <= BYTES_PER_RECORD * (LAST - SETTLED)
