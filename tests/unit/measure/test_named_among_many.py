"""Hundreds of virtual workers: the one at fault is named, and nobody in a healthy run.

Suffixes give shapes: W = workers, K = sketch length.
"""

import random

import pytest
import torch

from unisono.diagnose.engine import Diagnosis
from unisono.listen.messages import AllRanksStep, RankStep
from unisono.measure.step_record import Memory, measure
from unisono.records import AttemptRecord, WorkerFacts, from_line, to_line

WORKERS, LENGTH, READINGS, FAULT_AT, FAULTY = 256, 1_024, 110, 40, 77


def gradients(common_K, step, fault, generator):
    gradient_WK = 0.35 * common_K + torch.randn(WORKERS, LENGTH, generator=generator)
    if fault is not None and step >= FAULT_AT:
        gradient_WK[FAULTY] = fault(gradient_WK[FAULTY], generator)
    return gradient_WK


def all_ranks_step(gradient_WK, step, chance, copied):
    square_W = gradient_WK.double().square().sum(1).tolist()
    share = float(gradient_WK.mean(0).double().square().sum()) / WORKERS
    content_W = [step * WORKERS + (0 if copied and worker == FAULTY else worker) for worker in range(WORKERS)]
    signal_W = tuple(
        RankStep(
            step=step,
            time=float(step),
            loss=2.0 + chance.gauss(0, 0.1),
            seconds=0.1,
            compute=0.08 + chance.gauss(0, 0.001),
            heard=True,
            window=step // 32 * 32,
            reduced_share=share,
            squared_norm_G=(square,),
            lr=0.01,
            samples=8,
            content=content,
            fresh=True,
        )
        for square, content in zip(square_W, content_W, strict=True)
    )
    return AllRanksStep(step, signal_W, gradient_WK)


def findings(fault=None, copied=False):
    generator, chance = torch.Generator().manual_seed(1), random.Random(1)
    diagnosis, memory = Diagnosis(), Memory()
    workers = tuple(WorkerFacts(rank, "virtual", 0, "cpu") for rank in range(WORKERS))
    diagnosis.see(AttemptRecord(1, 0.0, WORKERS, 0, workers))
    common_K = torch.randn(LENGTH, generator=generator)
    for step in range(4 if copied else READINGS):
        all_ranks = all_ranks_step(gradients(common_K, step, fault, generator), step, chance, copied)
        diagnosis.see(from_line(to_line(measure(all_ranks, memory, 1))))
    return [(finding.code, finding.ranks) for finding in diagnosis.findings()]


FAULTS = {
    "wrong sign": lambda gradient_K, generator: -gradient_K,
    "noise": lambda gradient_K, generator: (
        gradient_K.norm() * torch.nn.functional.normalize(torch.randn(LENGTH, generator=generator), dim=0)
    ),
}


def test_nothing_is_found_among_healthy_workers():
    assert findings() == []


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_worker_at_fault_is_named(fault):
    assert findings(fault) == [("UN501", (FAULTY,))]


def test_workers_that_read_the_same_are_named():
    assert findings(copied=True) == [("UN101", (0, FAULTY))]
