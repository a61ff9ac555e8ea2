"""UN401: the norm of the averaged gradient far above its own recent past."""

from __future__ import annotations

from collections import deque

from unisono.diagnose.rules.shared.guarded_steps import tell_what_was_kept_away
from unisono.diagnose.rules.shared.layer_growth import growth, told
from unisono.diagnose.rules.shared.norm_episode import CLEARLY_LARGER, LASTING, SETTLED, Episode, leader
from unisono.diagnose.rules.shared.recent_values import RecentValues
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.spike_score import SpikeScore
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.rules.shared.steered_steps import applied_norm
from unisono.diagnose.statistics import median
from unisono.records import AttemptRecord, DecisionRecord, Floats, StepRecord
from unisono.records.finding import SEVERITIES

HOT, BEYOND, PAST, LEARNT = 10.0, 1.5, 50, 10
SUSTAINED, FIRST_LOSSES, EVERY = 3, 5, 10
FOLLOWED, ASKED = 150, 64
"""Steps after which what was an explosion is the new usual, and for which a risen loss asks for closer listening."""

RAISED = 1.5
"""A loss above this multiple of its usual value, and above all of its past, has clearly risen."""


class GradientExplosion(Statistical):
    """The gradients have become far too large"""

    code, slug, severity = "UN401", "gradient-explosion", "critical"
    pattern = "Gradient Explosion"
    source = "global gradient norm manual, section 3"
    meaning = (
        "The norm of the averaged gradient (before clipping) is more than 10 times the median of its last 50 calm "
        "readings, and clearly above all of them. That alone is a remark: rare samples and harder data do it too. It "
        "is a warning if the loss goes on rising afterwards to twice its value, if the norm came back and the loss, "
        "normal before, stays raised, if the norm was 10,000 times too large, or if a quarter of what was learnt is "
        "gone for 100 steps (half: for 50) after the learning rate jumped up, with three times the norm, and does not "
        "come back as after a warm restart; critical if after 50 steps the loss is back at the first losses of the run "
        "and does not fall, or is no longer finite. A loss that rose at once, for all workers and without a jump of "
        "the learning rate upwards, does not count: so it looks when data become harder."
    )
    correction = (
        "The manual alarms at a spike score (GSS) above 2. The literature has three different definitions of that "
        "score. Ours: the norm over its mean in the 100 readings before. Healthy training is above 2 at up to 14,108 "
        "of a million steps, so spikes are counted in a remark (below the findings of `unisono diagnose` and on the "
        "page, `remarks` in JSON) and are no finding."
    )
    needs = "10 readings of the gradient norm"
    causes = {
        "bad-data": "one worker's batch was corrupted or extreme",
        "learning-rate": "the learning rate is too high here (or its warm-up too short)",
        "momentum": "an earlier extreme step is still in the optimizer's momentum",
        "faulty-device": "one worker computed a wrong number from a normal batch: a flipped bit",
        "harder-data": "the data of all workers became harder at this step: another stage, source or length",
    }
    remedies = {
        "bad-data": (
            "look at that worker's batches around the step (`unisono batches RUN`) and filter them, for example by "
            "their perplexity under a trained model; skip such steps with `--guard`",
        ),
        "learning-rate": (
            "go back to a checkpoint before the step; lower the learning rate or lengthen its warm-up",
            "clip gradients with torch.nn.utils.clip_grad_norm_",
        ),
        "momentum": (
            "restart from a checkpoint before the step with a new optimizer state",
            "skip steps with such a norm: do not call optimizer.step() where clip_grad_norm_ returns far too much",
        ),
        "faulty-device": (
            "run that batch again on this device and on another one, and compare the gradients; test or drain the host",
            "restart from a checkpoint before the step: the wrong number is in the weights or in the optimizer's state",
        ),
        "harder-data": ("compare what the loader yields before and after the step; if it was meant, nothing is wrong",),
    }
    explains = ("UN104", "UN105", "UN402", "UN403", "UN404", "UN406", "UN408", "UN411", "UN501")
    forgets_at_jumps = False

    def __init__(self) -> None:
        self._start_loss = 0.0
        self._healed_below: float | None = None
        self._score = SpikeScore()
        super().__init__()

    def forget(self) -> None:
        self._norms, self._losses = RecentValues(PAST), RecentValues(PAST)
        self._past_TG: deque[Floats] = deque(maxlen=PAST)
        self._past_TW: deque[Floats] = deque(maxlen=PAST)
        self._first: list[float] = []
        self._clipped = False
        self._risen: list[float] = []
        self._jumped_at: int | None = None
        self._episode: Episode | None = None

    @property
    def suspicious(self) -> bool:
        """A loss has risen between two readings of the norm."""
        episode = self._episode
        return episode is not None and episode.by_loss and len(episode.losses) < ASKED

    @property
    def remark(self) -> str:
        """The manual's score, for whoever looks for it: healthy training has spikes, so they are no finding."""
        return self._score.remark()

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        super().on_attempt(record, run_state)
        self._score.start_anew()

    def on_decision(self, record: DecisionRecord, run_state: RunState) -> None:
        tell_what_was_kept_away(self, record, run_state, "norm_ratio", {"bad-data": 0.5, "learning-rate": 0.3})

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        super().on_step(record, run_state)
        comparable = run_state.comparable
        if comparable.jumped and comparable.turmoil:
            self._jumped_at = record.step
        if not comparable.usable and self._episode is not None and not record.skipped:
            self._break(self._episode, record, run_state)

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        norm, loss = self._norm(record), record.loss_mean
        if norm is not None:
            self._score.add(record.step, norm)
        if norm is not None and norm > HOT * self._norms.median > 0 and self._is_beyond(norm):
            episode = self._episode or self._begin(record)
            episode.heat()
        elif norm is not None and self._episode is None and self._is_larger_since_a_jump(norm, record.step):
            self._begin(record).by_loss = True
        if self._episode is not None:
            self._follow(self._episode, record, run_state, norm)
            return
        if loss is not None:
            self._hear_loss(record, loss)
        if norm is not None and norm > 0:
            self._norms.add(norm)
            self._past_TG.append(record.norm_G)
            self._past_TW.append(record.norm_W)
            if len(self._norms) >= LEARNT and (self._healed_below is None or self._is_healed()):
                self.passed(record.step)

    def _is_beyond(self, norm: float) -> bool:
        """Tiny batches have norms tenfold apart all the time."""
        return len(self._norms) >= LEARNT and norm > BEYOND * max(self._norms.values)

    def _is_larger_since_a_jump(self, norm: float, step: int) -> bool:
        """Of the learning rate: what becomes of the loss is worth following then, also at a few times the norm."""
        if self._jumped_at is None or step - self._jumped_at > SETTLED or len(self._losses) < PAST:
            return False
        return norm > CLEARLY_LARGER * self._norms.median and norm > max(self._norms.values, default=norm)

    def _is_healed(self) -> bool:
        """What an explosion has destroyed is not repaired by a norm that is small again."""
        if self._healed_below is not None and len(self._losses) and self._losses.median < self._healed_below:
            self._healed_below = None
        return self._healed_below is None

    def _norm(self, record: StepRecord) -> float | None:
        """What the user's clipping returned is known at every step; two sources in one series could have two scales."""
        if record.clip_norm is not None and not self._clipped:
            self.forget()
            self._score.start_anew()
            self._clipped = True
        return record.clip_norm if self._clipped else applied_norm(record)

    def _hear_loss(self, record: StepRecord, loss: float) -> None:
        if len(self._first) < FIRST_LOSSES:
            self._first.append(loss)
            if len(self._first) == FIRST_LOSSES:
                self._start_loss = max(self._start_loss, median(self._first))
        if loss > RAISED * self._losses.median > 0 and len(self._losses) == PAST and loss > max(self._losses.values):
            self._risen.append(loss)
            if len(self._risen) >= SUSTAINED:
                self._begin(record).by_loss = True
            return
        # What did not last is part of the past: without its highest losses every later one would look raised.
        for usual in (*self._risen, loss):
            self._losses.add(usual)
        self._risen = []

    def _begin(self, record: StepRecord) -> Episode:
        led = leader(record, self._past_TW)
        by_rate = self._jumped_at is not None and record.step - self._jumped_at <= SETTLED
        self._episode = Episode(record, list(self._losses.values), self._start_loss, led, by_rate)
        return self._episode

    def _follow(self, episode: Episode, record: StepRecord, run_state: RunState, norm: float | None) -> None:
        episode.follow(record.loss_mean)
        episode.broke = 0
        if norm is not None and len(self._norms) and norm > episode.peak * self._norms.median:
            episode.peak = norm / self._norms.median
            episode.ratio_G = growth(record.norm_G, self._past_TG)
        if self._is_time(episode):
            self._judge(episode, record, run_state)
        if episode.since_hot > SETTLED and not (episode.by_loss or episode.hot >= SUSTAINED):
            self._episode = None
        elif len(episode.losses) >= FOLLOWED or episode.since_hot >= FOLLOWED:
            self.forget()

    def _is_time(self, episode: Episode) -> bool:
        """Now and then: an explosion that lasts must not make listening slow."""
        if episode.hot < SUSTAINED and not episode.by_loss:
            return episode.since_hot in (2, SETTLED + 1)
        return (episode.since_hot == 1 and episode.hot == SUSTAINED) or len(episode.losses) % EVERY == 0

    def _break(self, episode: Episode, record: StepRecord, run_state: RunState) -> None:
        """Two steps in a row that are not finite."""
        episode.broke += False in record.finite_W
        if episode.broke == 2 and episode.peak > CLEARLY_LARGER:
            self._accuse(episode, record, run_state, "critical")

    def _judge(self, episode: Episode, record: StepRecord, run_state: RunState) -> None:
        severity = episode.severity()
        remark = severity == "info"
        if remark and (self._jumped_at is not None or episode.hot == 0 or not self._is_remark()):
            return
        self._accuse(episode, record, run_state, severity)

    def _is_remark(self) -> bool:
        """A remark must not cover what was graver."""
        return self.case is None or self.case.severity == "info"

    def _make_room(self, episode: Episode, severity: str) -> None:
        """What was only remarked on before, perhaps of other workers, is not what a graver finding is about."""
        case, usual = self.case, episode.usual_loss
        if case is not None and SEVERITIES.index(severity) > SEVERITIES.index(case.severity):
            self.case = None if case.first_step < episode.first.step else case
        if usual is not None and (severity == "critical" or episode.set_back()):
            self._healed_below = max(RAISED * usual, usual + (self._start_loss - usual) / 2)

    def _accuse(self, episode: Episode, record: StepRecord, run_state: RunState, severity: str) -> None:
        self._make_room(episode, severity)
        # A spike in a job that is already wrecked says nothing of who wrecked it.
        led = episode.leader if self.case is None or self.case.first_step == episode.first.step else None
        place = told(episode.ratio_G, run_state)
        evidence: dict[str, float | int | str] = {"norm_to_recent_median": round(episode.peak, 3)}
        if record.loss_mean is not None and episode.usual_loss is not None:
            evidence |= {"loss": record.loss_mean, "usual_loss": episode.usual_loss}
        if place is not None:
            evidence["where"] = place
        if self._score.spikes:
            evidence |= {"gss_above_2": self._score.spikes, "largest_gss": round(self._score.largest, 3)}
        self.report(
            record.step if episode.since_hot <= 1 or severity != "info" else episode.first.step,
            run_state,
            why=self._why(episode) + ("" if place is None else f"; it grew {place}"),
            causes=self._causes(episode),
            workers=() if led is None else (led,),
            severity=severity,
            evidence=evidence,
            since=episode.first.step,
        )

    def _why(self, episode: Episode) -> str:
        came_back = ", and came back" if 0 < episode.hot < SUSTAINED and episode.since_hot > 1 else ""
        said = f"the gradient norm was {episode.peak:.3g} times the median of its last {PAST} calm readings{came_back}"
        usual = episode.usual_loss
        if usual is None or not episode.losses:
            return said
        now = median(episode.losses[-LASTING:])
        if episode.broke:
            return f"{said}, and the numbers are no longer finite"
        if episode.lost():
            return (
                f"{said}; the loss went from {usual:.3g} to {now:.3g} and does not fall (first: {self._start_loss:.3g})"
            )
        if episode.grows() or episode.damaged() or episode.set_back():
            return f"{said}; the loss, {usual:.3g} before, has risen to {now:.3g} since"
        return said

    def _causes(self, episode: Episode) -> dict[str, float]:
        led = {} if episode.leader is None else {"bad-data": 0.7}
        if led and episode.absurd and episode.began_as_usual:
            return {"faulty-device": 0.7, "bad-data": 0.4}
        harmed = episode.damaged() or episode.grows() or episode.lost() or episode.set_back()
        if harmed and episode.began_as_usual and not episode.by_rate and episode.hot < LASTING:
            return {"momentum": 0.8, "learning-rate": 0.3} | led
        if led:
            return led | {"momentum": 0.2, "learning-rate": 0.2}
        if harmed or episode.broke or self._jumped_at is not None:
            return {"learning-rate": 0.8, "momentum": 0.3}
        if episode.hot < SUSTAINED:
            return {"bad-data": 0.5, "learning-rate": 0.4}
        return {"learning-rate": 0.5, "harder-data": 0.5, "bad-data": 0.2}
