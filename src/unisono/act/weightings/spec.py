"""A weighting as text, as in `agreement:max_distance=0.95,gram=exact`: checked without torch, made with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unisono.common.errors import UserError
from unisono.common.spec import listed, parse

VARIABLE = "UNISONO_WEIGHTING"
GRAMS, SCOPES = ("sketch", "exact"), ("model", "bucket")


@dataclass(frozen=True)
class Asked:
    """What a text asks for: the weighting's name and options, what wraps it, and how steering is to work."""

    name: str
    options: dict[str, Any]
    norm_aware: bool = False
    preconditioned: bool = False
    window: int | None = None
    gram: str = "sketch"
    scope: str = "model"
    forget_rejected: bool = False

    def weighting(self) -> Any:
        """Needs torch."""
        from unisono.act.weightings.adaptive import AdaptiveFilter
        from unisono.act.weightings.agreement import AgreementFilter
        from unisono.act.weightings.mean import Mean
        from unisono.act.weightings.norm_aware import NormAware
        from unisono.act.weightings.preconditioned import Preconditioned
        from unisono.act.weightings.windowed import Windowed

        kinds = {"mean": Mean, "agreement": AgreementFilter, "adaptive": AdaptiveFilter}
        made: Any = kinds[self.name](**self.options)
        if self.norm_aware:
            made = NormAware(made)
        if self.preconditioned:
            made = Preconditioned(made)
        return made if self.window is None else Windowed(made, steps=self.window)


def asked(text: str) -> Asked:
    """Raises UserError on what cannot be."""
    name, options = parse(text)
    if name not in OPTIONS:
        raise UserError(
            f"a weighting should be {listed(OPTIONS)}. Found `{name}`. Write: --weighting agreement:max_distance=0.95"
        )
    known = OPTIONS[name] | COMMON
    values: dict[str, Any] = {}
    for option in options:
        if option.name not in known or not option.given:
            raise UserError(f"options of the weighting `{name}` should be {listed(known)}. Found `{option}`.")
        values[option.name] = known[option.name](option.name, option.value)
    if values.get("fusion") == "halving" and values.get("order", "any") == "any":
        raise UserError("the fusion `halving` depends on the order of workers. Add: order=sequential")
    if values.get("gram") == "exact" and (values.get("preconditioned") or values.get("window")):
        raise UserError("`window` and `preconditioned` need sketches. Found `gram=exact`. Leave one of them out.")
    common = {key: values.pop(key) for key in list(values) if key in COMMON}
    return Asked(name, values, **common)


def checked(text: str) -> str:
    asked(text)
    return text


def _number(low: float, high: float) -> Callable[[str, str], float]:
    def read(key: str, value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise UserError(f"`{key}` of a weighting should be a number from {low} to {high}. Found `{value}`.")
        return number

    return read


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def read(key: str, value: str) -> str:
        if value not in choices:
            raise UserError(f"`{key}` of a weighting should be {listed(choices)}. Found `{value}`.")
        return value

    return read


def _switch(key: str, value: str) -> bool:
    return _one_of("on", "off")(key, value) == "on"


def _steps(key: str, value: str) -> int:
    if not value.isdecimal() or not 2 <= int(value) <= 10**6:
        raise UserError(f"`{key}` of a weighting should be a whole number of steps from 2 up. Found `{value}`.")
    return int(value)


OPTIONS: dict[str, dict[str, Callable[[str, str], Any]]] = {
    "agreement": {
        "max_distance": _number(0, 2),
        "order": _one_of("any", "sequential"),
        "fusion": _one_of("mean", "halving"),
    },
    "adaptive": {"share": _number(0.01, 0.99)},
    "mean": {},
}
COMMON: dict[str, Callable[[str, str], Any]] = {
    "norm_aware": _switch,
    "preconditioned": _switch,
    "window": _steps,
    "gram": _one_of(*GRAMS),
    "scope": _one_of(*SCOPES),
    "forget_rejected": _switch,
}
