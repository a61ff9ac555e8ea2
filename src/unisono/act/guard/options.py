"""`unisono.guard`: what unisono may do by itself when a step is bad, asked for by name.

    monitor = unisono.attach(model, optimizer, guard=unisono.guard())                # skips bad steps, nothing else
    unisono.guard(rollback=True, checkpoints=unisono.Checkpoints(every=200, where="disk"))
    unisono.guard("guard.toml", dry_run=True)                                        # from `unisono calibrate`

A policy of your own is a list of rows, which are asked after those of unisono:

    from unisono.policy import Row
    unisono.guard(rows=[Row("hot", lambda now: "norm above 50" if (now.norm or 0) > 50 else None, "skip")])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from unisono.act.guard import option_checks as checks
from unisono.act.guard import policy_conditions as rows
from unisono.act.guard.options_file import read_guard_file
from unisono.act.guard.policy import Policy, Row
from unisono.act.guard.policy_conditions import NormLimit
from unisono.act.guard.step_state import Reason, Situation

NORM_SPIKE, LOSS_SPIKE, EXPLOSION = 10.0, 50.0, 100.0
"""In healthy runs of the detection benchmark's settings the largest of each was below half of it
(docs/evidence/guard_on_healthy.json)."""

VARIABLE, ON = "UNISONO_GUARD", "on"
"""In the environment: this word, or the path of a guard file."""

UNHELPED = "UN602"
"""Among the findings to halt on: what the guard did has not helped."""

PERSISTENT = 3
RESTS = 10
"""Steps after a repair of replicas or random streams in which it is not tried again."""


@dataclass(frozen=True)
class Checkpoints:
    """Healthy states to go back to: one every so many steps, the newest few are kept."""

    every: int = 100
    keep: int = 3
    quiet: int = 20
    """Steps without trouble after which one counts as healthy."""

    where: str = "memory"
    """`memory`, or `disk`: in the run's directory, and also there after a restart."""

    save: Callable[[int], Any] | None = None
    load: Callable[[int], Any] | None = None
    """The trainer's own checkpoints, in place of unisono's; both are called with the step."""

    def __post_init__(self) -> None:
        checks.check_checkpoints(self)


@dataclass(frozen=True)
class Guard:
    """What was asked for; made by `unisono.guard`, which explains the options."""

    skip: bool = True
    loss_spike: float | bool = LOSS_SPIKE
    norm_spike: float | bool = True
    clip: float | bool = False
    rollback: float | bool = False
    resync: int | bool = False
    resync_from: str = "majority"
    reset_momentum: int | bool = False
    halt: bool | Sequence[str] = False
    reseed: bool = False
    rows: Sequence[Row] = ()
    checkpoints: Checkpoints | None = None
    """`None` only where nothing is to be kept: with `rollback` the usual ones are taken."""

    budget: int | bool = 3
    per: int = 1000
    dry_run: bool = False
    every: int | None = None
    """Listen to gradients at every so-manieth step, as a guard file may ask for."""

    def __post_init__(self) -> None:
        checks.check_guard(self)
        object.__setattr__(self, "rows", tuple(self.rows))
        if self.rollback and self.checkpoints is None:
            object.__setattr__(self, "checkpoints", Checkpoints())

    def spike(self, situation: Situation) -> Reason | None:
        """What is not finite or extreme about a step, whether or not anything is done about it."""
        return rows.spike(situation, self.norm_limit, float(self.loss_spike))

    @property
    def norm_limit(self) -> NormLimit | None:
        return NormLimit.of(self.norm_spike, NORM_SPIKE)

    def words(self) -> str:
        """What may be done: `skip, rollback; dry run`."""
        names = ("skip", "clip", "rollback", "resync", "reset_momentum", "halt", "reseed")
        asked = [name.replace("_", " ") for name in names if getattr(self, name)] + [row.name for row in self.rows]
        return ", ".join(asked) + "; dry run" * self.dry_run

    def leaves_it_to_the_device(self) -> bool:
        """Whether a GPU may decide that a step does not count: nothing else is to be done at the same step."""
        return self.skip and not (self.clip or self.rows or self.dry_run)

    def policy(self) -> Policy:
        budget = None if self.budget is False else int(self.budget)
        asked = [*self._own_rows(), *self.rows, *self._clipping()]
        return Policy(asked, budget, self.per, self.dry_run, halts_unhelped=self._halts_on(UNHELPED))

    def _halts_on(self, code: str) -> bool:
        return not isinstance(self.halt, bool) and code in self.halt

    def described(self) -> str:
        """All options as text, equal on two workers where they were asked for the same."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("rows", "checkpoints")}
        parts = [f"{name}={value!r}" for name, value in plain.items()]
        parts += [
            f"row={row.name}:{'+'.join(row.actions)}:{row.confirm}:{row.cool_down}:{row.counted}" for row in self.rows
        ]
        if self.checkpoints is not None:
            kept = self.checkpoints
            own = "own" if kept.save is not None else kept.where
            parts.append(f"checkpoints={kept.every}:{kept.keep}:{kept.quiet}:{own}")
        return " ".join(parts)

    def _own_rows(self) -> list[Row]:
        norm, loss = self.norm_limit, float(self.loss_spike)
        momentum = PERSISTENT if self.reset_momentum is True else int(self.reset_momentum)
        found: list[Row] = []
        if limit := NormLimit.of(self.rollback, EXPLOSION):
            # A reset of the momentum is the milder remedy, and comes first where both were asked for.
            persistent = momentum + 1 if momentum else PERSISTENT
            when = partial(rows.exploded, limit=limit, persistent=persistent, norm_spike=norm, loss_spike=loss)
            found.append(Row("explosion", when, ("roll-back", "skip")))
        if momentum:
            when = partial(rows.persists, count=momentum, norm_spike=norm, loss_spike=loss)
            found.append(Row("spikes-persist", when, ("reset-momentum", "skip")))
        if self.skip:
            found.append(Row("non-finite", rows.not_finite, "skip"))
            found.append(Row("extreme", partial(rows.extreme, norm_spike=norm, loss_spike=loss), "skip"))
        return found + self._repairs()

    def _repairs(self) -> list[Row]:
        found: list[Row] = []
        if self.resync:
            when = partial(rows.on_finding, codes=rows.REPLICAS_DIFFER)
            found.append(Row("replicas-differ", when, "resync", cool_down=RESTS))
        # Whether replicas differ is known only to those who compare, which a dry run does not.
        if self.resync and self.resync is not True and not self.dry_run:
            found.append(Row("periodic", partial(rows.due, every=int(self.resync)), "resync", counted=False))
        if self.reseed:
            when = partial(rows.on_finding, codes=rows.IDENTICAL_RANDOMNESS)
            found.append(Row("identical-randomness", when, "reseed", cool_down=RESTS))
        if self.halt:
            asked = rows.critical if self.halt is True else partial(rows.on_finding, codes=tuple(self.halt))
            found.append(Row("critical", asked, "halt"))
        return found

    def _clipping(self) -> list[Row]:
        if not self.clip:
            return []
        limit = None if self.clip is True else float(self.clip)
        return [Row("clip", partial(rows.above, limit=limit), "clip", counted=False, alongside=True)]


def guard(file: str | os.PathLike[str] | None = None, **options: Any) -> Guard:
    """
    What unisono may do by itself. Without options: skip steps that are not finite or extreme, and nothing else.

    :param file: A TOML file with a table `[guard]`, as `unisono calibrate RUN --write FILE` writes it. Options given
        here count more than those in the file.
    :param skip: Skip a step, on all workers, when any of them is not finite or extreme.
    :param norm_spike: A gradient norm is extreme beyond this many times the end of its usual range, whatever the losses
        do. True: 10 times, and 40 times while the losses of most workers rise together. False: never.
    :param loss_spike: A worker's loss is extreme when it is so many times as far from its recent ones as usual, and
        five times that of the other workers. False: never.
    :param clip: Scale gradients down to this norm; True: to twice the median of the recent norms.
    :param rollback: Go back to the last healthy checkpoint when the norm is this many times the end of its usual range
        (True: 100, and 400 while the losses of most workers rise together), when spikes persist, or on a critical UN401
        or UN404; at most `budget` times within `per` steps.
    :param resync: Make replicas equal again when they were found to differ; a number: and compare them every so many
        steps.
    :param resync_from: Whose replica counts: that of the `majority`, or of the `first` worker.
    :param reset_momentum: Empty the optimizers' momentum at the so-manieth spike within ten steps (True: the third).
    :param halt: Stop all workers on these findings, as in `["UN410"]`; True: on any critical one. With "UN602": when
        `budget` actions within `per` steps did not help, instead of the next one.
    :param reseed: Give each worker random numbers of its own when they were found to draw the same.
    :param rows: Rows of your own (`unisono.policy.Row`), asked after the others.
    :param checkpoints: `unisono.Checkpoints(...)`, where the usual ones do not fit.
    :param budget: Roll-backs within `per` steps; there are no more of them until those are past. False: any number.
    :param dry_run: Only tell what would have been done.
    :param every: Listen to gradients at every so-manieth step.
    """
    checks.check_names(options, [one.name for one in fields(Guard)])
    checks.check_path(file)
    if file is None:
        return Guard(**options)
    content = read_guard_file(file)
    if options.get("rollback") is False:
        # Then the file's checkpoints are not wanted either.
        options.setdefault("checkpoints", None)
    with checks.in_file(file):
        asked = _from_file(content)
    return replace(asked, **options)


def from_environment(value: str | None) -> Guard | None:
    """What the variable asks for; `None` where it is not set."""
    if not value:
        return None
    return guard() if value == ON else guard(value)


def checked_variable(value: str) -> str:
    from_environment(value)
    return value


def checked_file(file: str) -> str:
    """Its absolute path, if it is a guard file without mistakes."""
    guard(file)
    return os.path.abspath(file)


def _from_file(content: Mapping[str, Any]) -> Guard:
    options = dict(content)
    kept = options.pop("checkpoints", None)
    checks.check_names(options, [one.name for one in fields(Guard) if one.name != "rows"])
    if kept is not None:
        checks.check_names(kept, ("every", "keep", "quiet", "where"))
        options["checkpoints"] = Checkpoints(**kept)
    return Guard(**options)
