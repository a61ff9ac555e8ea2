"""Every job that the lab can train, by the name of its fault."""

from __future__ import annotations

from collections.abc import Callable

from unisono.lab.faults.faulty_jobs import EXACT_JOBS
from unisono.lab.faults.honest_job import Job
from unisono.lab.faults.injected_jobs import STATISTICAL_JOBS

JOBS: dict[str, Callable[..., Job]] = {"honest": Job, **EXACT_JOBS, **STATISTICAL_JOBS}
