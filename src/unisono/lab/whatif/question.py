"""What `unisono lab whatif` is asked: a weighting, and the values of its option to go through. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unisono.act.weightings.spec import OPTIONS, Asked, asked
from unisono.common.errors import UserError

GRIDS = {
    "agreement": ("max_distance", (0.80, 0.90, 0.95, 0.97, 0.99, 1.00, 1.01, 1.05, 2.00)),
    "adaptive": ("share", (0.3, 0.5, 0.7)),
}
KEEPS_EVERYBODY = 2.0
"""A `max_distance` that no gradient can exceed."""


@dataclass(frozen=True)
class Question:
    weighting: Asked
    option: str
    values: tuple[float, ...]
    """In rising order."""

    @property
    def given(self) -> float | None:
        """The value in the text, where there is one."""
        value: float | None = self.weighting.options.get(self.option)
        return value

    def at(self, value: float) -> Asked:
        return replace(self.weighting, options={**self.weighting.options, self.option: value})

    def text(self, value: float) -> str:
        """As `--weighting` takes it."""
        others = {key: given for key, given in self.weighting.options.items() if key != self.option}
        others |= {"norm_aware": "on"} if self.weighting.norm_aware else {}
        options = {self.option: written(value), **others}
        return f"{self.weighting.name}:{','.join(f'{key}={given}' for key, given in options.items())}"

    def strictest_first(self) -> tuple[float, ...]:
        return self.values if self.option == "max_distance" else self.values[::-1]

    def filters(self, value: float) -> bool:
        return self.option != "max_distance" or value < KEEPS_EVERYBODY


def question(text: str, grid: str | None) -> Question:
    """Raises UserError on what cannot be replayed.

    :param grid: Numbers in place of the usual ones, separated by commas.
    """
    weighting = asked(text)
    if weighting.name not in GRIDS:
        raise UserError(
            f"`--weighting` of `lab whatif` should be {' or '.join(f'`{name}`' for name in GRIDS)}. "
            f"Found `{weighting.name}`, which keeps everybody. Write: --weighting agreement"
        )
    _check_replayable(weighting)
    option, usual = GRIDS[weighting.name]
    values = set(usual if grid is None else _numbers(weighting.name, option, grid))
    if option in weighting.options:
        values.add(weighting.options[option])
    return Question(weighting, option, tuple(sorted(values)))


def written(value: float) -> str:
    """With two digits where they are enough."""
    return f"{value:.2f}" if round(value, 2) == value else f"{value:.6g}"


def _check_replayable(weighting: Asked) -> None:
    given = {
        "window": weighting.window,
        "preconditioned=on": weighting.preconditioned,
        "gram=exact": weighting.gram == "exact",
        "scope=bucket": weighting.scope == "bucket",
    }
    for name, is_given in given.items():
        if is_given:
            raise UserError(
                "`lab whatif` replays what was recorded: cosines of sketched gradients of the whole model, step by "
                f"step. Found `{name}`, which needs more than that. Leave it out."
            )


def _numbers(name: str, option: str, grid: str) -> list[float]:
    parts = [part.strip() for part in grid.split(",") if part.strip()]
    if not parts:
        raise UserError(f"`--grid` should hold values of `{option}`. Found `{grid}`. Write: --grid 0.9,0.95")
    read = OPTIONS[name][option]
    return [float(read(option, part)) for part in parts]
