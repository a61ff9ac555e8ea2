"""From what is known at a step to what all workers do: a table of rows, the first one that holds counts.

Only the first worker decides, and the others are told: a decision is the same everywhere by construction. W = workers.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeAlias

from unisono.act.guard.step_state import Reason, Situation
from unisono.common.errors import UserError

__all__ = ["ACTIONS", "Decision", "Policy", "Reason", "Row", "Situation"]

ACTIONS = ("skip", "clip", "reset-momentum", "resync", "roll-back", "halt", "reseed", "callback")
ENDING = {"skip", "roll-back", "halt"}
"""After these there is no step left to do anything else to."""


When: TypeAlias = Callable[[Situation], "str | Reason | None"]
Callback: TypeAlias = Callable[["Decision"], None]


@dataclass(frozen=True, slots=True)
class Row:
    """When to do what.

    `when` gets the situation and returns the reason in words, or nothing. `do` names one action or several, or is a
    function of your own, which is called on every worker with the decision.

        Row("hot", lambda now: "norm above 50" if (now.norm or 0) > 50 else None, "skip")
    """

    name: str
    when: When
    do: str | tuple[str, ...] | Callback
    confirm: int = 1
    """Steps in a row at which it has to hold."""

    cool_down: int = 0
    """Steps after an action in which it rests."""

    counted: bool = True
    """Among the actions after which `halt=["UN602"]` stops the job; healthy checkpoints are older than these."""

    alongside: bool = False
    """Also where an earlier row acts, if that one lets the step happen."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UserError(f"a row of a policy should have a name. Found {self.name!r}. Write: Row('name', when, do)")
        if not callable(self.when):
            raise UserError(
                f"`when` of the row `{self.name}` should be a function of a situation. Found {self.when!r}."
            )
        unknown = [name for name in self.actions if name not in ACTIONS]
        if unknown or not self.actions:
            found = f"`{unknown[0]}`" if unknown else "none"
            raise UserError(
                f"`do` of the row `{self.name}` should be a function or actions ({', '.join(ACTIONS[:-1])}). "
                f"Found {found}."
            )

    @property
    def actions(self) -> tuple[str, ...]:
        if callable(self.do):
            return ("callback",)
        return (self.do,) if isinstance(self.do, str) else tuple(self.do)


@dataclass(frozen=True, slots=True)
class Decision:
    """What all workers do at a step, or would have done (`dry`)."""

    step: int
    number: int
    """In this attempt, from 1."""

    actions: tuple[str, ...]
    reason: str
    row: str
    ranks: tuple[int, ...] = ()
    evidence: Mapping[str, float] = field(default_factory=dict)
    argument: float | None = None
    """Of `roll-back` the checkpoint's step, of `clip` what gradients are multiplied by."""

    dry: bool = False
    counted: bool = True
    since: int | None = None
    """The step at which the trouble began, if that is not this one."""

    time: float = 0.0

    @property
    def begun(self) -> int:
        return self.step if self.since is None else min(self.step, self.since)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Decision:
        content = json.loads(text)
        return Decision(**content | {name: tuple(content[name]) for name in ("actions", "ranks")})


class Policy:
    """Rows with their memory: how long each has held, when it last acted, and what is left of the budget."""

    def __init__(
        self,
        rows: Sequence[Row],
        budget: int | None = 3,
        per: int = 1000,
        dry_run: bool = False,
        halts_unhelped: bool = False,
    ) -> None:
        """
        :param budget: Roll-backs within `per` steps; rows that roll back rest then. `None`: any number of them.
        :param halts_unhelped: Instead, and for all counted actions: the next one beyond the budget halts.
        """
        self.rows, self.budget, self.per = tuple(rows), budget, per
        self.dry_run, self.halts_unhelped = dry_run, halts_unhelped
        names = [row.name for row in self.rows]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise UserError(
                f"each row of a policy should have a name of its own. Found `{twice[0]}` twice. Rename one."
            )
        self.broken: dict[str, str] = {}
        """Rows whose `when` has failed, and how: they rest from then on. What cannot be judged is no reason to act."""

        self.used_up = ""
        """Why a roll-back was not made, in words, until one is made again."""

        self._held = dict.fromkeys(names, 0)
        self._acted: dict[str, int] = {}
        self._spent: deque[int] = deque(maxlen=budget or 1)
        """Steps of what the budget is for."""

        self._decisions = 0
        self._halted = False

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def decide(self, situation: Situation) -> Decision | None:
        if self._halted:
            return None
        chosen: list[tuple[Row, Reason]] = []
        for row in self.rows:
            # All are asked, so that each knows for how long it has held.
            reason = self._reason(row, situation)
            if reason is not None and (not chosen or (row.alongside and not _ends(chosen))):
                chosen.append((row, reason))
        if not chosen:
            return None
        return self._decision(situation, chosen)

    def _reason(self, row: Row, situation: Situation) -> Reason | None:
        """Why the row acts now; `None` where it does not."""
        reason = self._asked(row, situation)
        self._held[row.name] = 0 if reason is None else self._held[row.name] + 1
        if reason is None or self._held[row.name] < row.confirm or self._rests(row, reason, situation.step):
            return None
        if "roll-back" in row.actions and not self.halts_unhelped and not self._affordable(situation.step):
            self._refuse_to_roll_back(reason)
            return None
        return reason

    def _rests(self, row: Row, reason: Reason, step: int) -> bool:
        """After its last action, or because what it has seen is older than that."""
        last = self._acted.get(row.name)
        if last is None:
            return False
        return (row.cool_down > 0 and step - last <= row.cool_down) or (reason.seen is not None and reason.seen <= last)

    def _refuse_to_roll_back(self, reason: Reason) -> None:
        if not self.used_up:
            again = f" before step {self._spent[0] + self.per:,}" if self._spent else ""
            self.used_up = f"{self._unhelped('roll-backs')}: {reason.words}; there are no more of them{again}"

    def _asked(self, row: Row, situation: Situation) -> Reason | None:
        if row.name in self.broken:
            return None
        try:
            answer = row.when(situation)
            reason = Reason(answer) if isinstance(answer, str) else answer
            if not isinstance(reason, Reason) or not reason.words:
                return None
            # It is sent to all workers, and written down.
            return replace(reason, evidence={str(name): float(value) for name, value in reason.evidence.items()})
        except Exception as error:
            self.broken[row.name] = f"{type(error).__name__}: {error}"
            return None

    def _decision(self, situation: Situation, chosen: Sequence[tuple[Row, Reason]]) -> Decision:
        words = "; ".join(reason.words for _, reason in chosen)
        actions = tuple(dict.fromkeys(action for row, _ in chosen for action in row.actions))
        argument = next((reason.argument for _, reason in chosen if reason.argument is not None), None)
        if "roll-back" in actions:
            actions, argument, words = _with_checkpoint(situation, actions, chosen[0][1], words)
        step = situation.step
        for row, _ in chosen:
            self._acted[row.name] = step
        counted = any(row.counted for row, _ in chosen)
        if self.halts_unhelped and counted and "halt" not in actions and not self._affordable(step):
            actions, argument = ("halt",), None
            words = f"{self._unhelped('actions')}: {words}"
        elif "roll-back" in actions or (self.halts_unhelped and counted):
            self._spent.append(step)
            self.used_up = ""
        self._halted = "halt" in actions
        self._decisions += 1
        return Decision(
            step=step,
            number=self._decisions,
            actions=actions,
            reason=words,
            row=", ".join(row.name for row, _ in chosen),
            ranks=tuple(sorted({rank for _, reason in chosen for rank in reason.ranks})),
            evidence={name: value for _, reason in chosen for name, value in reason.evidence.items()},
            argument=argument,
            dry=self.dry_run,
            counted=counted,
            since=min((reason.since for _, reason in chosen if reason.since is not None), default=None),
            time=time.time(),
        )

    def charge(self, step: int) -> None:
        """An action that was not counted beforehand turned out to be needed."""
        if self.halts_unhelped:
            self._spent.append(step)

    def callbacks(self) -> dict[str, Callback]:
        return {row.name: row.do for row in self.rows if callable(row.do)}

    def _affordable(self, step: int) -> bool:
        return self.budget is None or sum(step - earlier < self.per for earlier in self._spent) < self.budget

    def _unhelped(self, what: str) -> str:
        return f"{self.budget} {what} in the last {self.per:,} steps did not help"


def _ends(chosen: Sequence[tuple[Row, Reason]]) -> bool:
    return any(action in ENDING for row, _ in chosen for action in row.actions)


def _with_checkpoint(
    situation: Situation, actions: tuple[str, ...], reason: Reason, words: str
) -> tuple[tuple[str, ...], float | None, str]:
    """Actions, the step to go back to, and words. Without a checkpoint from before the trouble the step is skipped."""
    since = situation.step if reason.since is None else reason.since
    older = [step for step in situation.restorable if step < since]
    if older:
        return actions, float(older[-1]), words
    left = tuple(action for action in actions if action not in ("roll-back", "skip"))
    return (*left, "skip"), None, f"{words}; no healthy checkpoint from before it to roll back to"
