"""What a verdict rests on: who was heard, how completely, until when, and how the job ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unisono.common.schedule import WINDOW
from unisono.diagnose.rules.shared.gradient_outliers import WINDOW_READINGS
from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState, spoken
from unisono.diagnose.rules.shared.sampling_facts import draws_again, is_divided
from unisono.records import AttemptRecord, DepartureRecord, EndRecord, NoteRecord, Record, StepRecord

FEWEST_READINGS = 32
"""With fewer, nothing that is learnt from the run itself can be judged."""

LEAST_SHARE = WINDOW_READINGS / WINDOW
"""Of the readings that were due: UN501 sums directions over windows of 32, and fewer than 16 make none."""

LIVE_SECONDS = 30.0
"""A writer is taken for alive so long after its last record."""

SILENT_AFTER = 3
"""Steps in a row without a worker's report, or readings without its gradient: the last ones may have been late."""

NO_PROCESS = "nothing was heard: no process with torch has started, or none got as far as training"
NO_ATTEMPT = "the line that says how the job began is missing or cannot be read"
ENDINGS = ("finished", "running", "crashed", "killed", "unknown")
BAD_ENDINGS = ("crashed", "killed")
BY_ITSELF = ("exception", "exit")


@dataclass(frozen=True, slots=True)
class Heard:
    level: str
    """`gradients`, `optimizer` (steps, but no gradient of a single worker) or `nothing`."""

    steps: int
    """Those at which all workers were heard."""

    gradients: float
    directions: float
    """Shares of the steps that should have been heard, 0 to 1."""

    silent: Mapping[int, int]
    """The ranks that were not heard to the end, with the first step without them."""

    ended: str
    """One of `ENDINGS`."""

    end: str | None = None
    """How the job ended, as a sentence, if not well."""

    too_little: str | None = None
    """Why there is too little to call the run healthy; `None` where there is enough."""

    not_judged: tuple[str, ...] = ()
    """What a healthy run is usually cleared of, and this one could not be."""

    idle: float = 0.0
    """Seconds since the newest step, of a job that runs: its writer lives, and nobody gets on."""

    @property
    def why(self) -> str | None:
        return self.end or self.too_little

    def as_dict(self) -> dict[str, Any]:
        """As `unisono diagnose --json` prints it."""
        return {
            "level": self.level,
            "steps": self.steps,
            "gradients": round(self.gradients, 4),
            "directions": round(self.directions, 4),
            "silent": [{"rank": rank, "since": since} for rank, since in sorted(self.silent.items())],
            "ended": self.ended,
            "why": self.why,
            "not_judged": list(self.not_judged),
            "idle": round(self.idle, 1),
        }


class Hearing:
    """Follows the records of a run. Counts are of all of it; who is there, and how it ended, of the newest attempt."""

    def __init__(self) -> None:
        self.steps = 0
        """That were recorded."""

        self._readings = self._directions = self._due = 0
        self._newest_due: deque[tuple[bool, bool]] = deque(maxlen=FEWEST_READINGS)
        """Whether the gradients and the directions of the newest readings that were due have come."""

        self._spans = 0
        """Steps that the attempts before this one went through, recorded or not."""

        self._time = self._stepped = -math.inf
        self._begin(None)

    def _begin(self, attempt: AttemptRecord | None) -> None:
        self._attempt = attempt
        self._first: int | None = None
        self._newest = -1
        self._workers = 0 if attempt is None else attempt.world
        self._missed: dict[int, tuple[int, int]] = {}
        """By worker: the first of the newest steps without it, and how many they are."""

        self._unread: dict[int, tuple[int, int]] = {}
        """The same for readings without its gradient."""

        self._end: EndRecord | None = None
        self._departures: list[DepartureRecord] = []
        self._nothing_heard = ""
        """Why nothing was heard, by the word of a process that trained."""

    def see(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._see_step(record)
        elif isinstance(record, AttemptRecord):
            self._spans += self._span()
            self._begin(record)
        elif isinstance(record, EndRecord):
            self._end = record
        elif isinstance(record, DepartureRecord):
            self._departures.append(record)
        elif isinstance(record, NoteRecord) and record.about == "nothing-heard":
            self._nothing_heard = record.text
        self._time = max(self._time, getattr(record, "time", -math.inf))

    def _see_step(self, record: StepRecord) -> None:
        self.steps += 1
        self._end = None
        self._stepped = record.time
        self._first = record.step if self._first is None else min(self._first, record.step)
        self._newest = max(self._newest, record.step)
        self._workers = self._workers or len(record.finite_W)
        if record.heard or record.missed:
            self._see_reading(record)
        if None in record.finite_W:
            self._missed = _counted_on(self._missed, record.finite_W, record.step)
        elif self._missed and record.finite_W:
            self._missed.clear()

    def _see_reading(self, record: StepRecord) -> None:
        gradients = record.heard and None not in record.norm_W
        directions = _directions_came(record)
        self._due += 1
        self._readings += gradients
        self._directions += directions
        self._newest_due.append((gradients, directions))
        if record.norm_W:
            self._unread = _counted_on(self._unread, record.norm_W, record.step)

    def _span(self) -> int:
        return 0 if self._first is None else self._newest - self._first + 1

    def conclude(self, unchecked: Sequence[Rule], run_state: RunState, ended: str) -> Heard:
        """
        :param unchecked: Rules that have not been able to look.
        """
        level = "gradients" if self._due else "optimizer" if self.steps else "nothing"
        # A step without a record was to be heard as often as the others.
        expected = self._due * max(1.0, (self._spans + self._span()) / max(1, self.steps))
        heard = Heard(
            level=level,
            steps=self._readings if level == "gradients" else self.steps,
            gradients=self._readings / expected if expected else 0.0,
            directions=self._directions / expected if expected else 0.0,
            silent=self._silent(run_state),
            ended=ended,
            end=self._bad_end(ended),
            idle=max(0.0, self._time - self._stepped) if ended == "running" and self.steps else 0.0,
        )
        if ended == "unknown" and self.steps and self._attempt is not None:
            # From before it was written down how a job ended: its verdict stays what it was.
            return heard
        wanting = [rule for rule in unchecked if rule.code in NEEDED and self.steps]
        subjects = dict.fromkeys(NEEDED[rule.code].subject for rule in wanting)
        return replace(heard, too_little=self._too_little(heard, wanting, run_state), not_judged=tuple(subjects))

    def ended(self, now: float) -> str:
        """As far as the records tell; one of `ENDINGS`."""
        if self._end is not None:
            return self._end.ended if self._end.ended in ENDINGS else "unknown"
        if self._attempt is not None and not self._attempt.tells_end:
            return "unknown"
        live = abs(now - self._time) < LIVE_SECONDS
        gone = [one for one in self._departures if not live or one.how != "silence"]
        if gone:
            return "crashed" if any(one.how in BY_ITSELF for one in gone) else "killed"
        if live:
            return "running"
        return "unknown" if self._attempt is None else "killed"

    def _bad_end(self, ended: str) -> str | None:
        if ended not in BAD_ENDINGS:
            return None
        # What the first rank had recorded last may be lost with it.
        newest = max([self._newest, *(one.step for one in self._departures)])
        when = f"after step {newest:,}" if self._span() else "before its first step, and nothing was heard"
        if ended == "crashed":
            code = "" if self._end is None else self._end.detail
            return f"the job ended with {code} {when}" if code else f"the job crashed {when}"
        told = self._end is not None or bool(self._departures)
        return f"the job was killed {when}" if told else f"the job was killed, or ended without a word, {when}"

    def _silent(self, run_state: RunState) -> dict[int, int]:
        unheard = [*self._unread.items(), *self._missed.items()] if not run_state.joins else []
        workers = {worker: since for worker, (since, count) in unheard if count >= SILENT_AFTER}
        return {rank: workers[worker] for worker, rank in zip(workers, run_state.ranks([*workers]), strict=True)}

    def _too_little(self, heard: Heard, wanting: Sequence[Rule], run_state: RunState) -> str | None:
        if self._nothing_heard or self._attempt is None or not self._span():
            return self._nothing_heard or self._told_nothing()
        if heard.silent:
            return _told_silent(heard.silent, self._first or 0)
        if self._end is not None and self._end.trained >= self._newest + SILENT_AFTER:
            return f"nothing was heard after step {self._newest:,}, and training went on to step {self._end.trained:,}"
        if self._workers == 1:
            return "one worker alone: there is nobody to compare it with"
        if self._due >= FEWEST_READINGS and (rarely := self._told_rarely(heard)) is not None:
            return rarely
        if heard.steps < FEWEST_READINGS:
            so_far = " so far" * (heard.ended == "running")
            return f"{heard.steps} steps were heard{so_far}, and it takes {FEWEST_READINGS} to judge a run"
        late = next((rule for rule in wanting if NEEDED[rule.code].can_exist(run_state)), None)
        if late is not None and heard.level == "gradients":
            return f"{late.code} has not been possible: it needs {late.needs}"
        return None

    def _told_rarely(self, heard: Heard) -> str | None:
        gradients, directions = map(sum, zip(*self._newest_due, strict=True))
        for what, share, newest in (
            ("gradients", heard.gradients, gradients),
            ("directions", heard.directions, directions),
        ):
            if share < LEAST_SHARE:
                return f"{what} were heard in {100 * share:.0f} % of the steps: too few for UN501"
            if newest < LEAST_SHARE * FEWEST_READINGS:
                return f"{what} were heard at {newest} of the last {FEWEST_READINGS} readings: too few for UN501"
        return None

    def _told_nothing(self) -> str:
        if self._attempt is None:
            return NO_ATTEMPT if self.steps else NO_PROCESS
        return "nothing was heard" if not self.steps else f"nothing was heard of attempt {self._attempt.attempt}"


def _directions_came(record: StepRecord) -> bool:
    """A gradient of zeros has no direction, and with two workers the other one then has nothing to agree with."""
    if record.cos_W and None in record.cos_W:
        return 0.0 in record.norm_W
    # Lists may have been left out of the records of very many workers.
    return bool(record.cos_W) or record.cos_mean is not None or record.window_steps is not None


def _counted_on(
    missed: Mapping[int, tuple[int, int]], value_W: Sequence[object], step: int
) -> dict[int, tuple[int, int]]:
    """By worker without a value: the first of the steps in a row without one, and how many they are."""
    absent = {worker: missed.get(worker, (step, 0)) for worker, value in enumerate(value_W) if value is None}
    return {worker: (since, count + 1) for worker, (since, count) in absent.items()}


def _told_silent(silent: Mapping[int, int], first: int) -> str:
    """Those that fell silent at one step share a clause."""
    clauses = []
    for since in sorted(set(silent.values())):
        ranks = sorted(rank for rank, step in silent.items() if step == since)
        when = "never heard" if since <= first else f"not heard since step {since:,}"
        clauses.append(f"{spoken(ranks)} {'were' if len(ranks) > 1 else 'was'} {when}")
    return ", ".join(clauses)


@dataclass(frozen=True, slots=True)
class Needed:
    """A check without which no run is healthy, wherever its evidence can exist."""

    subject: str
    """What is not judged without it."""

    can_exist: Callable[[RunState], bool]
    """Asked of a run with enough readings. What travels with a reading and did not come with any of them cannot."""


def _always(run_state: RunState) -> bool:
    return True


def _never(run_state: RunState) -> bool:
    return False


def _is_divided(run_state: RunState) -> bool:
    """Only torch's own sampler tells at once; parts that are chosen otherwise are compared when an epoch is over."""
    facts = run_state.facts("loader")
    if facts is None or "pass" in facts.differ or "repeats" in {**facts.same, **facts.differ}:
        return False
    return is_divided(facts) and facts.same.get("sampler") == "DistributedSampler" and not draws_again(facts)


def _promises_equality(run_state: RunState) -> bool:
    """The wrapper says so, and the job does not say that its workers train on their own."""
    return run_state.fact("model", "equal weights") == "promised" and not run_state.local_training


def _has_loader(run_state: RunState) -> bool:
    return run_state.facts("loader") is not None


NEEDED = {
    "UN101": Needed("duplicated data", _never),
    "UN102": Needed("data order", _is_divided),
    "UN106": Needed("data order", _has_loader),
    "UN202": Needed("initial weights", _always),
    "UN301": Needed("equal weights", _promises_equality),
    "UN302": Needed("synchronisation", _promises_equality),
    "UN303": Needed("optimizer settings", _never),
    "UN404": Needed("finite numbers", _always),
    "UN501": Needed("directions", _never),
    "UN502": Needed("missing workers", _always),
}
