"""Run files with numbers as real workers give them, written without training."""

import numpy as np

from unisono.records import (
    FORMAT,
    AttemptRecord,
    DecisionRecord,
    EndRecord,
    NoteRecord,
    RunRecord,
    StepRecord,
    WorkerFacts,
    to_line,
)

GROUPS = ("embedding", "block.0", "block.1", "head")


def attempt(workers, number=1, first_step=0, host="node", groups=GROUPS, ranks=None):
    facts = tuple(
        WorkerFacts(rank, f"{host}{rank // 8}", 100 + rank, f"cuda:{rank % 8}") for rank in ranks or range(workers)
    )
    return AttemptRecord(
        *(number, 1e9 + first_step, workers, first_step, facts, groups, 1_000_000, 65_536, "2.13.0", "3.11.9"),
        tells_end=True,
    )


def steps(workers=4, count=200, first=0, number=1, opposed=None, twins=(), every=1, matrices=True, seed=0, **fields):
    """Healthy ones, but for a worker whose gradient has the wrong sign, or workers whose gradients are the same."""
    random = np.random.default_rng(seed)
    for step in range(first, first + count):
        heard = step % every == 0
        loss_W = 2.0 / (1 + step / 100) + 0.05 * random.standard_normal(workers)
        values = {"loss_W": loss_W, "loss_mean": loss_W.mean(), "loss_std": loss_W.std(), "loss_range": np.ptp(loss_W)}
        if heard:
            values |= _heard(random, workers, opposed, twins, matrices)
            values |= {"window_start": step - step % 32, "window_steps": step % 32 + 1}
        plain = {name: _plain(value) for name, value in values.items()}
        seconds = tuple((0.1 + 0.002 * random.random(workers)).round(5).tolist())
        own = {name: value(step) if callable(value) else value for name, value in fields.items()}
        yield StepRecord(
            **{
                "attempt": number,
                "step": step,
                "time": 1e9 + step,
                "heard": heard,
                "finite_W": (True,) * workers,
                "compute_W": seconds,
                "step_W": seconds,
                "listening_cost": 0.004,
                "lr": 0.1,
                **plain,
                **own,
            }
        )


def steered(workers=4, left_out=lambda step: (), distance=0.8):
    """Fields for `steps`: steering that leaves out some workers at each step, or skips it by leaving out all."""

    def kept(step):
        return workers - len(left_out(step))

    def weights(step):
        rejected = left_out(step)
        return tuple(0.0 if one in rejected else 1 / kept(step) for one in range(workers)) if kept(step) else ()

    return {
        "kept_workers": kept,
        "weight_W": lambda step: weights(step) if left_out(step) else (),
        "distance_W": lambda step: (distance,) * workers,
        "skipped": lambda step: kept(step) == 0,
    }


def _heard(random, workers, opposed, twins, matrices):
    norm_W = 1.0 + 0.05 * random.standard_normal(workers)
    sign_W = np.ones(workers)
    if opposed is not None:
        sign_W[opposed] = -1
    values = {
        "norm_W": norm_W,
        "grad_norm": 0.6,
        "grad_norm_std": norm_W.std(),
        "grad_norm_cv": norm_W.std() / norm_W.mean(),
        "cos_W": 0.2 * sign_W + 0.05 * random.standard_normal(workers),
        "window_cos_W": 0.7 * sign_W + 0.02 * random.standard_normal(workers),
        "cos_mean": 0.15,
        "cos_min": -0.3,
        "cos_expected": 0.16,
        "noise_scale": 5.0,
        "effective_workers": workers / 1.5,
    }
    return values | (_matrices(random, workers, sign_W, twins) if matrices else {})


def _matrices(random, workers, sign_W, twins):
    cos_WW = 0.2 * np.outer(sign_W, sign_W) + 0.01 * random.standard_normal((workers, workers))
    for one in twins:
        for other in twins:
            cos_WW[one, other] = 0.99
    np.fill_diagonal(cos_WW, 1)
    return {
        "cos_WW": cos_WW,
        "norm_GW": 1 + 0.1 * random.random((len(GROUPS), workers)),
        "cos_GW": 0.2 * np.tile(sign_W, (len(GROUPS), 1)),
    }


def _plain(value):
    if isinstance(value, np.ndarray):
        return tuple(_plain(row) for row in value) if value.ndim > 1 else tuple(value.round(5).tolist())
    return value if isinstance(value, int) else float(value)


def header(run="invented", script="train"):
    return RunRecord(FORMAT, run, 1e9, script, "0.1.0")


def end(step, number=1):
    return EndRecord(number, step, 1e9 + step, step + 1, step + 1, 0, 0.004)


def note(step, text, about="", ranks=()):
    return NoteRecord(1, step, 1e9 + step, text, about, ranks)


def decision(step, action="skip", reason="rank 1's loss is not finite", number=1, attempt=1, **fields):
    return DecisionRecord(attempt, step, 1e9 + step, f"{attempt}-{step}-{number}", action, reason, **fields)


def write(folder, *records):
    """A run directory with these records."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.jsonl").write_text("".join(to_line(record) + "\n" for record in records))
    return folder


def run(folder, workers=4, count=200, name="invented", **options):
    return write(folder, header(name), attempt(workers), *steps(workers, count, **options), end(count - 1))
