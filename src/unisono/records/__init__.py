"""What unisono writes down: frozen records of plain numbers, one per line of a run file."""

from unisono.records._decision import DecisionRecord
from unisono.records._evidence import BatchRecord, CoverageRecord, FactsRecord, ReplicasRecord, StreamsRecord
from unisono.records._lines import RECORD_TYPES, Record, from_line, to_line
from unisono.records._run import (
    FORMAT,
    AttemptRecord,
    EndRecord,
    FloatRows,
    Floats,
    Ints,
    LocalStep,
    NoteRecord,
    RunRecord,
    StepRecord,
    Twins,
    WorkerFacts,
)

__all__ = [
    "FORMAT",
    "RECORD_TYPES",
    "AttemptRecord",
    "BatchRecord",
    "CoverageRecord",
    "DecisionRecord",
    "EndRecord",
    "FactsRecord",
    "FloatRows",
    "Floats",
    "Ints",
    "LocalStep",
    "NoteRecord",
    "Record",
    "ReplicasRecord",
    "RunRecord",
    "StepRecord",
    "StreamsRecord",
    "Twins",
    "WorkerFacts",
    "from_line",
    "to_line",
]
