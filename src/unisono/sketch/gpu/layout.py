"""How the rows of many gradients are shared out among the programs of one launch.

A run is a few rows of one gradient whose rotations are equal modulo 16. Programs walk over units: as many rows each,
group by group. What a unit adds to one layer group has a slot of its own, and a stretch is the part of it that has one
rotation modulo 16. Suffixes give shapes: G = layer groups, N = rows, R = runs, S = stretches, U = units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from unisono.sketch.hashing import LANES

UNITS = 16
"""Of the largest launch: enough for a large GPU to be busy, few enough for memory. One per tile of the sketch runs."""

ROWS_OF_A_RUN = 64
"""Squares of so many rows are added in float32, four by four; the rest in float64."""


@dataclass(frozen=True, slots=True)
class RowRun:
    group: int
    slice: int
    parameter: int
    first: int
    count: int
    place: int
    """Where its squared norm goes: runs of one gradient are neighbours there."""


@dataclass(slots=True)
class LaunchLayout:
    row_N2: list[tuple[int, int]] = field(default_factory=list)
    """Gradient, and its row."""

    run_R3: list[tuple[int, int, int]] = field(default_factory=list)
    """First row, end of rows, place."""

    stretch_S4: list[list[int]] = field(default_factory=list)
    """Slice, first run, end of runs, slot."""

    unit_U2: list[list[int]] = field(default_factory=list)
    """First stretch, end of stretches."""


def runs_of(parameter: int, elements: int, key: int, group: int, length: int, place: int) -> list[RowRun]:
    found: list[RowRun] = []
    rows = -(-elements // length)
    for piece in range(LANES):
        # As in row_plan.py: the slice of a row is (row + key) % 16.
        first = (piece - key) % LANES
        while first < rows:
            count = min(ROWS_OF_A_RUN, -(-(rows - first) // LANES))
            found.append(RowRun(group, piece, parameter, first, count, place + len(found)))
            first += count * LANES
    return found


def slots_wanted(runs: Sequence[RowRun], groups: int) -> list[int]:
    """Of each group, where all runs are read in one launch."""
    wanted = [0] * groups
    for unit in _units(runs, [UNITS] * groups):
        for group in {run.group for run in unit}:
            wanted[group] += 1
    return [max(1, count) for count in wanted]


def lay_out(runs: Sequence[RowRun], slots_G: Sequence[int], position: dict[int, int]) -> LaunchLayout:
    """:param position: of each parameter among the gradients of this launch."""
    layout = LaunchLayout()
    used_G = [sum(slots_G[:group]) for group in range(len(slots_G))]
    for unit in _units(runs, slots_G):
        layout.unit_U2.append([len(layout.stretch_S4), 0])
        before: tuple[int, int] | None = None
        for run in unit:
            if before is None or before[0] != run.group:
                slot = used_G[run.group]
                used_G[run.group] += 1
            if before != (run.group, run.slice):
                layout.stretch_S4.append([run.slice, len(layout.run_R3), 0, slot])
            before = run.group, run.slice
            _append(layout, run, position[run.parameter])
        layout.unit_U2[-1][1] = len(layout.stretch_S4)
    return layout


def _append(layout: LaunchLayout, run: RowRun, position: int) -> None:
    begin = len(layout.row_N2)
    layout.row_N2 += [(position, run.first + LANES * number) for number in range(run.count)]
    layout.run_R3.append((begin, len(layout.row_N2), run.place))
    layout.stretch_S4[-1][2] = len(layout.run_R3)


def _units(runs: Sequence[RowRun], slots_G: Sequence[int]) -> list[list[RowRun]]:
    """As many rows each, unless that would take a group more slots than it has."""
    enough = sum(run.count for run in runs) / UNITS
    units: list[list[RowRun]] = []
    pieces_G = [0] * len(slots_G)
    rows, group = 0, -1
    for run in sorted(runs, key=lambda run: (run.group, run.slice, run.place)):
        same_group = run.group == group
        if not units or (rows >= enough and not (same_group and pieces_G[group] == slots_G[group])):
            units.append([])
            rows, same_group = 0, False
        group = run.group
        pieces_G[group] += not same_group
        units[-1].append(run)
        rows += run.count
    return units
