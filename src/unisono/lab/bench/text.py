"""What was measured, as narrow tables in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unisono.common.terminal import lines_of
from unisono.lab.bench.step_cost import DEFAULT_SCHEDULE, EVERY_STEP, PLAIN

TOO_SHORT = "Made with --short: this shows that it works, and is too short for a figure."

HEAD = f"{'type':<8} {'elements':>12} thr"


def as_text(found: Mapping[str, Any], width: int, short: bool) -> str:
    parts = [
        *([TOO_SHORT] if short else []),
        _machine(found["machine"]),
        _buffers(found["buffers"], width),
        _models(found["model"], width),
        *(_step(row, width) for row in found["step"]),
        _routes(found["routes"], width),
        *([TOO_SHORT] if short else []),
    ]
    return "\n\n".join(parts)


def _machine(machine: Mapping[str, Any]) -> str:
    compiled = "with" if machine["compiled"] else "without"
    return f"{machine['device']}, {machine['cores']} cores, torch {machine['torch']}, {compiled} compiled code for CPU"


def _section(title: str, meaning: str, rows: Sequence[str], width: int) -> str:
    return "\n".join([title, *lines_of(meaning, width, "  ", "  "), "", *(f"  {row}".rstrip() for row in rows)])


def _buffers(rows: Sequence[Mapping[str, Any]], width: int) -> str:
    meaning = (
        "GB/s of a copy (bytes read and written), of torch's vector_norm, and of unisono's norm and sketch of 65,536 "
        "numbers together. Ratios: unisono's time to vector_norm's, its GB/s to the copy's, a fingerprint's time to "
        "vector_norm's. How far both norms are off, against float64. A GPU's cache is swept before each read; on a CPU "
        "a small buffer may be read from the cache. thr: threads."
    )
    lines = [
        f"{'':<25} {'GB/s':^17} {'ratio':^16} {'off by':^13}",
        f"{HEAD}  copy  norm  ours  norm copy print   norm   ours",
    ]
    return _section("One read of a buffer of gradients", meaning, [*lines, *map(_buffer, rows)], width)


def _buffer(row: Mapping[str, Any]) -> str:
    speed = row["gigabytes_a_second"]
    speeds = " ".join(f"{_rounded(speed[name]):>5}" for name in ("copy", "vector_norm", "ours"))
    ratios = f"{row['ours_to_vector_norm']:>5.2f} {row['ours_of_copy_speed']:>4.2f}"
    ratios += f" {row['fingerprint_to_vector_norm']:>5.1f}"
    return f"{_kind(row)} {speeds} {ratios} {_errors(row, 'vector_norm')}"


def _models(rows: Sequence[Mapping[str, Any]], width: int) -> str:
    meaning = (
        f"The gradients of a model as they are, {rows[0]['tensors']} tensors: milliseconds of torch's get_total_norm, "
        "which is one norm, and of unisono's norms of all parameters with the sketches of all layers; the ratio of the "
        "two; how far both norms are off."
    )
    lines = [
        f"{'':<25} {'milliseconds':^13} {'':^6} {'off by':^13}",
        f"{HEAD}  total   ours  ratio  total   ours",
    ]
    return _section("One read of a model's gradients", meaning, [*lines, *map(_model, rows)], width)


def _model(row: Mapping[str, Any]) -> str:
    times = row["milliseconds"]
    cost = f"{times['total_norm']:>6.3g} {times['ours']:>6.3g} {row['ours_to_total_norm']:>6.2f}"
    return f"{_kind(row)} {cost} {_errors(row, 'total_norm')}"


def _kind(row: Mapping[str, Any]) -> str:
    return f"{row['dtype']:<8} {row['elements']:>12,} {row['threads']:>3}"


def _errors(row: Mapping[str, Any], other: str) -> str:
    return f"{abs(row[f'error_of_{other}']):>6.0e} {abs(row['error_of_ours']):>6.0e}"


def _rounded(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _step(row: Mapping[str, Any], width: int) -> str:
    title = f"One step of training, gradient_as_bucket_view={row['gradient_as_bucket_view']}"
    meaning = (
        f"{_job(row)}. Blocks of {row['steps_a_block']} timed steps take turns, {row['turns']} of each kind; in "
        f"brackets the least and the most of the turns. After step 500 the default schedule hears one step "
        f"in {row['interval']:,}: so unisono chooses from what it measured ({row['reading_milliseconds']:.3g} ms a "
        "reading). Its line is put together from steps that were heard and steps that were not."
    )
    lines = [f"{PLAIN:<20}{row['milliseconds'][PLAIN]:>8.4g} ms"]
    lines += [_added(name, row) for name in (EVERY_STEP, DEFAULT_SCHEDULE)]
    if any(row["extra_bytes"].values()):
        lines.append(f"{'more GPU memory':<20}{row['extra_bytes'][EVERY_STEP] / 2**20:>8.4g} MiB")
    return _section(title, meaning, lines, width)


def _added(name: str, row: Mapping[str, Any]) -> str:
    more, percent = row["added_milliseconds"][name]["median"], row["added_percent"][name]
    spread = f"({percent['least']:+.2f} to {percent['most']:+.2f})"
    return f"{name:<20}{more:>+8.3g} ms  {percent['median']:>+6.2f} %  {spread}"


def _routes(row: Mapping[str, Any], width: int) -> str:
    meaning = (
        f"{_job(row)}. Milliseconds of a step, and its ratio to plain all-reduce: workers that disagree are left out, "
        "told apart by sketches or by exact inner products of all gradients. In brackets the least and the most."
    )
    lines = [
        f"{name:<20}{row['milliseconds'][name]:>8.4g} ms  {ratio:>5.3f}  {_range(row['spread'][name])}"
        for name, ratio in row["ratio"].items()
    ]
    return _section("One steered step", meaning, lines, width)


def _range(spread: Mapping[str, float]) -> str:
    return f"({spread['least']:.3f} to {spread['most']:.3f})"


def _job(row: Mapping[str, Any]) -> str:
    workers = f"{row['workers']} worker" + ("s" if row["workers"] > 1 else "")
    return (
        f"{row['parameters']:,} parameters, {row['tokens_a_step']:,} tokens a step and worker, {workers} "
        f"({row['backend']})"
    )
