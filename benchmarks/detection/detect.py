"""The detection benchmark: runs with and without faults, spread over processes; what was found, and when."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context

import torch
from benchmarks.detection.outcome import Outcome, told
from benchmarks.detection.plan_of_trials import Trial
from benchmarks.detection.virtual_run import VirtualRun, train

from unisono.lab.faults.injections import INJECTIONS, Injection

TOGETHER = 8
"""Runs of a trial that train in one lock-step."""


def detect(trials: Iterable[Trial], processes: int) -> list[Outcome]:
    """All trials, the longest first; says on stderr how far it is."""
    pieces = sorted((piece for trial in trials for piece in _pieces(trial)), key=lambda piece: -piece.work)
    work, done, began = sum(piece.work for piece in pieces), 0, time.monotonic()
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        futures = {pool.submit(perform, piece): piece for piece in pieces}
        for future in as_completed(futures):
            outcomes += future.result()
            done += futures[future].work
            _say(done / work, time.monotonic() - began, len(outcomes))
    return outcomes


def _pieces(trial: Trial) -> Iterator[Trial]:
    for first in range(0, len(trial.victims), TOGETHER):
        yield replace(trial, victims=trial.victims[first : first + TOGETHER], seed=1000 * trial.seed + first)


def perform(trial: Trial) -> list[Outcome]:
    torch.set_num_threads(1)
    injections = [_injection(trial, victim) for victim in trial.victims]
    runs = train(trial.setting, injections, trial.seed)
    return [_outcome(trial, run) for run in runs]


def _injection(trial: Trial, victim: int) -> Injection:
    if not trial.fault:
        return Injection(victim, trial.starts_at)
    return INJECTIONS[trial.fault](victim, trial.starts_at)


def _outcome(trial: Trial, run: VirtualRun) -> Outcome:
    grave = [news for news in run.news if news.finding.at_least("warning")]
    last = [finding for finding in run.diagnosis.findings() if finding.at_least("warning")]
    begin = trial.starts_at
    return Outcome(
        fault=trial.fault,
        setting=trial.name,
        workers=trial.setting.workers,
        schedule=trial.schedule,
        fired=run.injection.fired,
        victim=run.injection.victim,
        told=tuple(told(n.finding, n.step, n.readings - run.readings_before) for n in grave if n.step >= begin),
        early=tuple(told(n.finding, n.step, n.readings) for n in grave if n.step < begin),
        healthy_steps=min(begin, trial.setting.steps),
        final_ranks={finding.code: finding.ranks for finding in last},
        manuals=dict(run.manuals.alarms),
    )


def _say(share: float, seconds: float, runs: int) -> None:
    left = seconds * (1 - share) / share
    sys.stderr.write(f"\r\x1b[K{share:.0%}, {runs} runs, {left:.0f} s left" if sys.stderr.isatty() else ".")
    sys.stderr.flush()
