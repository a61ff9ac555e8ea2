"""What unisono writes down: frozen records of plain numbers, one per line of a run file.

Suffixes give shapes: W = workers of the group in rank order, G = layer groups. `None` stands for "not known".
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

FORMAT = 1

Floats: TypeAlias = tuple[float | None, ...]
FloatRows: TypeAlias = tuple[Floats, ...]
Ints: TypeAlias = tuple[int | None, ...]
Twins: TypeAlias = tuple[int | None, ...]
"""For each worker the first worker that holds the same; `None` where that is not known."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The first line of a run file."""

    kind: ClassVar[str] = "run"
    format: int
    run: str
    time: float
    script: str
    unisono: str


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Where one rank runs."""

    rank: int
    host: str
    pid: int
    device: str


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """A start or restart of the job: who takes part, and how they are heard."""

    kind: ClassVar[str] = "attempt"
    attempt: int
    time: float
    world: int
    first_step: int
    workers: tuple[WorkerFacts, ...]
    groups: tuple[str, ...] = ()
    parameters: int = 0
    sketch_length: int = 0
    torch: str = ""
    python: str = ""
    launcher: str = ""
    steering: str = ""
    """By which weighting and how; empty where unisono does not weigh."""

    guard: str = ""
    """What the guard may do; empty where there is none."""

    tells_end: bool = False
    """Whether the writer writes an end record, so that its absence says something. Those of before did not say how a
    job ended."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One training step as all workers saw it. Everything below `finite_W` needs a heard step (`heard`)."""

    kind: ClassVar[str] = "step"
    attempt: int
    step: int
    time: float
    heard: bool = False
    skipped: bool = False
    """No optimizer step was taken: by the loss scaler, the user, the guard, or steering, which then kept nobody."""

    skipped_W: tuple[bool | None, ...] = ()
    """Only where the workers disagree about it."""

    skipped_steps: int = 0
    """How many such steps there have been in this attempt."""

    missed: bool = False
    """The gradients of this step were synchronised and should have been heard, and no worker has heard its own."""

    loss_W: Floats = ()
    loss_mean: float | None = None
    loss_std: float | None = None
    loss_range: float | None = None
    finite_W: tuple[bool | None, ...] = ()
    compute_W: Floats = ()
    """Seconds from the end of the last step to the end of the rank's own backward; `step_W`: of the whole step."""

    step_W: Floats = ()

    clip_norm: float | None = None
    """What the user's `clip_grad_norm_` returned."""

    listening_cost: float | None = None
    """Share of the training thread's time spent inside unisono since the start, worst rank."""

    kept_workers: int | None = None
    """Workers that steering gave a weight other than zero; `None` without steering."""

    weight_W: Floats = ()
    """Their weights, where they are not all 1 / W or, with nobody kept, all 0."""

    distance_W: Floats = ()
    """Cosine distance of each worker's gradient to the sum of the other kept ones, at steps with a reason to tell."""

    norm_W: Floats = ()
    grad_norm: float | None = None
    grad_norm_std: float | None = None
    grad_norm_cv: float | None = None
    nonfinite_W: tuple[int | None, ...] = ()
    """Parameter tensors with a NaN or infinity in their gradient."""

    cos_W: Floats = ()
    """Leave-one-out: each worker's gradient against the sum of the others'."""

    cos_mean: float | None = None
    cos_min: float | None = None
    cos_weighted: float | None = None
    """Norm-weighted mean cosine over pairs, exact (no sketch)."""

    cos_expected: float | None = None
    noise_scale: float | None = None
    """Gradient noise scale in units of one worker's batch, smoothed."""

    effective_workers: float | None = None
    cos_WW: FloatRows = ()
    norm_G: Floats = ()
    """Root mean square over workers of each layer group's norm."""

    norm_GW: FloatRows = ()
    cos_GW: FloatRows = ()
    window_start: int | None = None
    window_steps: int | None = None
    window_cos_W: Floats = ()
    """Leave-one-out cosines of the directions summed since `window_start`."""

    syncs_W: Ints = ()
    """Synchronised backward passes of the step; empty where every worker had exactly one."""

    backwards_W: Ints = ()
    """All backward passes of the step; empty where every worker had exactly one."""

    passes_W: Ints = ()
    """Synchronised backward passes since the start, only where the workers disagree about it."""

    updates_W: Ints = ()
    """Optimizer steps since the start, only where the workers disagree about it."""

    lr: float | None = None
    """Learning rate of the optimizer's first group, where all workers agree."""

    lr_W: Floats = ()
    """Only where the workers disagree."""

    settings_W: Twins = ()
    """Who shares all of the optimizer's numbers (learning rates, betas, decay) with whom, where not all do."""

    audits: tuple[str, ...] = ()
    """What was compared bit for bit: `reduced` gradients after all-reduce, `used` ones when the optimizer took them,
    `weights` after the step, optimizer `state`, `buffers`; all weights at the `start` of the step, where the step
    before was not synchronised."""

    part: int = 0
    parts: int = 0
    """The comparison covered the `part`-th of `parts` parts of the parameters; 0 parts: nothing was compared."""

    reduced_W: Twins = ()
    """Who shares the reduced gradients with whom; this and the next five are empty where all workers are equal."""

    used_W: Twins = ()
    weights_W: Twins = ()
    state_W: Twins = ()
    buffers_W: Twins = ()
    start_W: Twins = ()
    weight_spread: float | None = None
    """Where weights differ: largest minus smallest norm of the compared weights, relative to the largest."""

    samples_W: Ints = ()
    """Samples in the step's batches."""

    length_W: Floats = ()
    """Mean length of the samples, where they are sequences of whole numbers."""

    padding_W: Floats = ()
    """Share of targets that the loss leaves out (-100), where there are any, else of padding by the batch's mask."""

    input_mean_W: Floats = ()
    """Mean of the numbers that the model was fed with; `input_scale_W`: their standard deviation. Of some of them."""

    input_scale_W: Floats = ()

    indexed: int = 0
    """Workers whose dataset indices are known for this step."""

    compared: int = 0
    """Workers whose batch contents are known for this step."""

    fresh: bool = False
    """No worker has had its batch before, as far as it remembers."""

    repeats: int | None = None
    """The step at which all workers had the batches of this step before, where it was the same one for all."""

    same_indices_W: Twins = ()
    """Who read the same dataset indices as whom; this and the next two are empty where no two workers did."""

    same_content_W: Twins = ()
    same_targets_W: Twins = ()
    target_rows: int = 0
    """Distinct rows of the batch's last part on the worker with the fewest: equal labels of few kinds prove little.
    0 where a worker has had exactly these before."""


@dataclass(frozen=True, slots=True)
class ValidationRecord:
    """What the script said of the model's quality on data that it does not train on."""

    kind: ClassVar[str] = "validation"
    attempt: int
    step: int
    """The last one before it; the one before the first where nothing had been trained yet."""

    time: float
    rank: int
    """Who said it: the first worker, if it says anything."""

    validation: float
    """More is better."""


@dataclass(frozen=True, slots=True)
class NoteRecord:
    """Something unisono has to say about itself: degraded, recovered, readings lost."""

    kind: ClassVar[str] = "note"
    attempt: int
    step: int
    time: float
    text: str
    about: str = ""
    """`missing` (no sign of life), `unheard` (trains, but does not report), `returned`, `directions-lost`,
    `directions-back`; `nothing-heard` (a process trained, and had no model that unisono hears); `decisions-differ`
    where the workers do not hold the same decisions of the guard;
    `roll-backs-used-up` where it rolls back no more."""

    ranks: Ints = ()


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The attempt was closed by its writer."""

    kind: ClassVar[str] = "end"
    attempt: int
    step: int
    time: float
    steps: int
    heard: int
    lost: int
    listening_cost: float | None = None
    ended: str = "unknown"
    """`finished` (also where `smoke`, a test or the guard stopped the job), `crashed` or `killed`, as far as the writer
    can tell; a file from before this was written down says `unknown`."""

    detail: str = ""
    """The exit code, where it was not 0."""

    trained: int = -1
    """The last step that the writer's own rank has finished, also where nothing was recorded of it any more."""


@dataclass(frozen=True, slots=True)
class HeartbeatRecord:
    """The writer lives, though there was nothing else to write for some seconds."""

    kind: ClassVar[str] = "heartbeat"
    attempt: int
    step: int
    time: float


@dataclass(frozen=True, slots=True)
class DepartureRecord:
    """A rank has gone before the job was over; in the run file, or in the file of the rank that tells it."""

    kind: ClassVar[str] = "departure"
    attempt: int
    step: int
    """The last one that the rank is known to have finished."""

    time: float
    rank: int
    """Who has gone."""

    how: str
    """`signal`, `exception`, `exit` (by itself, before the end), `lost` (its process or connection is gone, and it left
    no word), `silence` (no sign of life for too long)."""

    detail: str = ""
    """The signal, the exception in one line, the exit code, or what was seen of the loss."""

    told_by: int = 0
    """The rank that tells it: the same one where it left a word itself."""


@dataclass(frozen=True, slots=True)
class LocalStep:
    """One step as one rank saw it; a line of `rank-N.jsonl`."""

    kind: ClassVar[str] = "local"
    attempt: int
    rank: int
    step: int
    time: float
    loss: float | None = None
    finite: bool | None = None
    norm: float | None = None
    compute: float | None = None
    seconds: float | None = None


def left_out(record: StepRecord) -> tuple[int, ...] | None:
    """The workers with weight zero; `None` without steering, at a skipped step, and where it was not noted down."""
    if not record.kept_workers:
        return None
    if record.weight_W:
        return tuple(worker for worker, weight in enumerate(record.weight_W) if weight == 0)
    return () if record.kept_workers >= len(record.finite_W) else None


def are_left_out(record: StepRecord, workers: Collection[int]) -> bool:
    """Whether steering kept these out of the update. Where only the number of the kept is known, that decides."""
    found = left_out(record)
    if found is not None:
        return set(workers) <= set(found)
    kept = record.kept_workers or 0
    return 0 < kept <= len(record.finite_W) - len(workers)
