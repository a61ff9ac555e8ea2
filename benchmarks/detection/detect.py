"""The detection benchmark: runs with and without faults, spread over processes; what was found, and when."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch
from benchmarks.detection.kept import load_outcomes, load_records, save_outcomes, save_records
from benchmarks.detection.outcome import Outcome, told
from benchmarks.detection.plan_of_trials import Trial
from benchmarks.detection.virtual_run import VirtualRun, judged, train

from unisono.lab.faults.injections import INJECTIONS, Injection

TOGETHER = 8
"""Runs of a trial that train in one lock-step."""


def detect(
    trials: Iterable[Trial], processes: int, kept: Path, records: Path | None = None, until: float = math.inf
) -> list[Outcome]:
    """All trials, in an order that any part of them stands for the whole; says on stderr how far it is.

    :param kept: Folder of outcomes: what lies there is done.
    :param records: Folder for the records of healthy runs: those that lie there are judged instead of training anew.
    :param until: No trial is begun after this time, as `time.monotonic()` has it.
    """
    pieces = [piece for trial in trials for piece in pieces_of(trial)]
    random.Random(0).shuffle(pieces)
    missing = [piece for piece in pieces if not _place(piece, kept).exists()]
    work, worked, began = sum(piece.work for piece in missing), 0, time.monotonic()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        running: dict[Future[list[Outcome]], Trial] = {}
        waiting = iter(missing)
        while True:
            while len(running) < processes and time.monotonic() < until and (piece := next(waiting, None)):
                running[pool.submit(perform, piece, records)] = piece
            if not running:
                break
            done = next(as_completed(running))
            piece = running.pop(done)
            save_outcomes(done.result(), _place(piece, kept))
            worked += piece.work
            _say(worked / work, time.monotonic() - began)
    places = [place for piece in pieces if (place := _place(piece, kept)).exists()]
    return [outcome for place in places for outcome in load_outcomes(place)]


def _place(piece: Trial, kept: Path) -> Path:
    return kept / f"{piece.slug}.json"


def pieces_of(trial: Trial) -> Iterator[Trial]:
    for first in range(0, len(trial.victims), TOGETHER):
        yield replace(trial, victims=trial.victims[first : first + TOGETHER], seed=1000 * trial.seed + first)


def perform(trial: Trial, records: Path | None = None) -> list[Outcome]:
    torch.set_num_threads(1)
    injections = [_injection(trial, victim) for victim in trial.victims]
    if trial.fault or records is None:
        return [_outcome(trial, run) for run in train(trial.setting, injections, trial.seed)]
    path = records / f"{trial.slug}.records"
    if path.exists():
        return [_outcome(trial, judged(trial.setting, run)) for run in load_records(path)]
    runs = train(trial.setting, injections, trial.seed, keep=True)
    save_records([run.records or [] for run in runs], path)
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
        told=tuple(told(n.finding, n.step, n.readings - run.readings_before, begin) for n in grave if n.step >= begin),
        early=tuple(told(n.finding, n.step, n.readings) for n in grave if n.step < begin),
        healthy_steps=min(begin, trial.setting.steps),
        final_ranks={finding.code: finding.ranks for finding in last},
        manuals=dict(run.manuals.alarms),
    )


def _say(share: float, seconds: float) -> None:
    left = seconds * (1 - share) / share
    sys.stderr.write(f"\r\x1b[K{share:.0%}, {left:.0f} s left" if sys.stderr.isatty() else ".")
    sys.stderr.flush()
