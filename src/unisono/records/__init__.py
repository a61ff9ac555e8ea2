"""What unisono writes down: frozen records of plain numbers, one per line of a run file."""

from unisono.records.decision import DecisionRecord
from unisono.records.evidence import BatchRecord, CoverageRecord, FactsRecord, ReplicasRecord, StreamsRecord
from unisono.records.lines import RECORD_TYPES, Record, from_line, to_line
from unisono.records.run import (
    FORMAT,
    AttemptRecord,
    DepartureRecord,
    EndRecord,
    FloatRows,
    Floats,
    HeartbeatRecord,
    Ints,
    LocalStep,
    NoteRecord,
    RunRecord,
    StepRecord,
    Twins,
    ValidationRecord,
    WorkerFacts,
    are_left_out,
    left_out,
)

__all__ = [
    "FORMAT",
    "RECORD_TYPES",
    "AttemptRecord",
    "BatchRecord",
    "CoverageRecord",
    "DecisionRecord",
    "DepartureRecord",
    "EndRecord",
    "FactsRecord",
    "FloatRows",
    "Floats",
    "HeartbeatRecord",
    "Ints",
    "LocalStep",
    "NoteRecord",
    "Record",
    "ReplicasRecord",
    "RunRecord",
    "StepRecord",
    "StreamsRecord",
    "Twins",
    "ValidationRecord",
    "WorkerFacts",
    "are_left_out",
    "from_line",
    "left_out",
    "to_line",
]
