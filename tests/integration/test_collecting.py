"""Gradients that are read late are still this worker's own, whatever DDP does with them meanwhile."""

import json
from pathlib import Path

import pytest

from launch import forked, launch

JOB = Path(__file__).parent.parent / "jobs" / "collected.py"
STEPS, PARAMETERS = 4, 16


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def found(request):
    outcome = launch(forked(request.param, JOB), env={"OMP_NUM_THREADS": 1})
    assert outcome.returncode == 0, outcome
    return json.loads(outcome.stdout)


def test_every_gradient_is_read_once_and_unchanged(found):
    too_late = found.pop("too late")
    for case, told in found.items():
        assert told["read"] == STEPS * PARAMETERS, case
        assert told["changed"] == 0, case
        assert told["equal"], case
    # Otherwise nothing was shown: read at the end of the pass, bucket views do change.
    assert too_late["changed"] > 0
    assert too_late["equal"]


def test_they_are_read_together_where_they_stay(found):
    reads = {case: told["reads"] for case, told in found.items()}
    assert reads["copies"] == STEPS
    assert reads["views"] == STEPS
    assert STEPS < reads["views, held"] < STEPS * PARAMETERS
    assert reads["views, unused"] == STEPS
    # A static graph is reduced at a time of its own once.
    assert reads["static"] == reads["static, views"] == PARAMETERS + STEPS - 1
    # In the first step they come in memory of their own.
    assert reads["views, zeroed"] == 1 + (STEPS - 1) * PARAMETERS
