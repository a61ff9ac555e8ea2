"""What the numbers of a step are called, in each of the places they go to."""

from __future__ import annotations

from unisono.common.errors import UserError
from unisono.records import StepRecord, ValidationRecord
from unisono.show.sinks.sink import SinkReading

METRICS = {
    "loss_mean": "Mean of the workers' losses",
    "loss_std": "Standard deviation of the workers' losses",
    "loss_range": "Largest minus smallest loss of a worker",
    "grad_norm": "Norm of the averaged gradient, at every step where the script clips it",
    "grad_norm_std": "Standard deviation of the workers' gradient norms",
    "grad_norm_cv": "Standard deviation of the workers' gradient norms, relative to their mean",
    "cos_mean": "Mean cosine between the gradients of two workers",
    "cos_min": "Smallest cosine between the gradients of two workers",
    "cos_expected": "Mean cosine that the noise scale predicts",
    "noise_scale": "Gradient noise scale, in batches of one worker",
    "effective_workers": "How many independent workers these are worth",
    "kept_workers": "Workers whose gradients steering let into the update",
    "skipped_steps": "Steps without an update of the weights so far",
    "listening_cost": "Share of the training thread's time spent in unisono",
    "validation": "What the script recorded of the model on data that it does not train on",
}
"""Fields of a step's record, the last one of a validation's, and what they mean."""

METRICS_W = {
    "loss": "Loss of one worker",
    "norm": "Gradient norm of one worker",
    "cos": "Cosine of one worker's gradient with the sum of the others'",
}
"""One value a worker. Pairs of workers stay in the run file."""

STEP = "step"
STEP_MEANING = "The newest step; numbers of gradients are those of the newest reading"

MANUALS = {
    "loss_std": "sys/loss_dispersion_std",
    "loss_range": "sys/loss_dispersion_range",
    "grad_norm": "train/global_grad_norm",
}
"""What the manuals call some of them."""

STYLES = ("unisono", "manuals")


def reading_of(record: StepRecord) -> SinkReading:
    values = {name: float(value) for name in METRICS if (value := getattr(record, name, None)) is not None}
    values_W = {name: value_W for name in METRICS_W if (value_W := getattr(record, f"{name}_W"))}
    return SinkReading(record.step, record.time, values, values_W)


def validation_reading(record: ValidationRecord) -> SinkReading:
    return SinkReading(record.step, record.time, {"validation": record.validation})


def slashed(part: str = "", style: str = "unisono") -> dict[str, str]:
    """Names for TensorBoard, W&B and MLflow: `unisono/loss_std`."""
    home = f"unisono/{part}" if part else "unisono"
    ours = {name: f"{home}/{name}" for name in (STEP, *METRICS)}
    return ours | MANUALS if style == "manuals" else ours


def checked_style(style: str) -> None:
    if style not in STYLES:
        # An address that got here by mistake may hold a secret.
        found = "something else" if "://" in style else f"`{style}`"
        raise UserError(f"`names` of a sink should be `unisono` or `manuals`. Found {found}. Choose one of them.")


def prometheus_name(name: str) -> str:
    return f"unisono_{name}"


def dotted(name: str) -> str:
    """For OpenTelemetry, where a dot separates a family from its members: `unisono.loss.std`."""
    family, _, member = name.partition("_")
    return f"unisono.{family}.{member}" if family in ("loss", "grad", "cos", "rank") else f"unisono.{name}"
