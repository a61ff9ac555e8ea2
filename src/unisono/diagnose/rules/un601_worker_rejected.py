"""UN601: steering keeps leaving out one worker, skips most steps, or meets gradients that cancel each other."""

from __future__ import annotations

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState, spoken
from unisono.diagnose.rules.shared.steered_steps import Marks
from unisono.records import AttemptRecord, StepRecord, left_out

WINDOW, LEAST, EVERY = 200, 100, 10
"""Steps that are looked back upon, before which nothing is said, and between two looks."""

MOST = 0.5
MORE = 0.3
"""A worker is rejected in most steps, and in so many more than is usual among the workers.

In a noisy run everybody may be rejected in half of the steps or more, each time somebody else. Over 200 steps such a
share errs by 0.035 at most, so that 0.3 is more than eight standard errors; after the first 100 steps it is six.
"""

FEWEST_WORKERS = 3
OPPOSED = 1.5
FEWEST_DISTANCES = 20


class WorkerRejected(Rule):
    """Steering keeps rejecting a worker, or most steps"""

    code, slug, severity = "UN601", "worker-rejected", "warning"
    source = "gradient agreement filtering (arXiv 2412.18052), failure signatures"
    meaning = (
        "Steering left the workers named out of more than half of the last 200 steps that it took, and at least 30 in "
        "100 steps more often than is usual among the workers; or it skipped more than half of the last 200 steps; or "
        "all workers were further than 1.5 (cosine distance) from the rest in most steps. What is left out or skipped "
        "is computed for nothing, and what it would have taught the model is lost. Being left out now and then, as "
        "often as the others, is healthy. Single gradients that are not finite are UN404's."
    )
    needs = "100 steps with steering by a weighting, which is off unless asked for"
    causes = {
        "data-conflicts": "that worker's data differs from the others' (labels, domain, corrupted part)",
        "faulty-worker": "that worker computes wrong gradients (a sign, its device, its preprocessing)",
        "distance-too-strict": "the largest distance allowed is too small for the noise of these batches",
        "small-batches": "the workers' batches are so small that their gradients are mostly noise",
        "gradients-not-finite": "gradients are NaN or infinite on so many workers that nobody is left",
        "nothing-left-in-common": "what one worker still learns the others unlearn: these data are learnt by heart, or "
        "contradict each other",
    }
    remedies = {
        "data-conflicts": ("compare that rank's samples and labels with the others': `unisono batches RUN`",),
        "faulty-worker": (
            "run one batch on that rank and on another one with the same weights, and compare the gradients",
        ),
        "distance-too-strict": (
            "raise max_distance of AgreementFilter; try values on this run first: `unisono lab whatif RUN`",
        ),
        "small-batches": ("raise batch_size of the DataLoader, or accumulate more micro-batches before each step",),
        "gradients-not-finite": (
            "find out where the first NaN comes from with torch.autograd.set_detect_anomaly(True), lower the learning "
            "rate, and use BF16 or torch.amp.GradScaler",
        ),
        "nothing-left-in-common": (
            "stop here if the validation loss no longer falls, or add data, augmentation or weight_decay",
            "look for samples with contradicting labels: `unisono batches RUN`",
        ),
    }

    def __init__(self) -> None:
        super().__init__()
        self._forget()

    def _forget(self) -> None:
        self._steps = self._workers = 0
        self._left_out, self._skipped, self._opposed = Marks(WINDOW), Marks(WINDOW), Marks(WINDOW)

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._forget()

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        if record.kept_workers is None:
            return
        self._steps += 1
        self._note(record)
        if self._steps < LEAST or self._steps % EVERY:
            return
        found = (
            self._look_at_workers(record, run_state),
            self._look_at_skips(record, run_state),
            self._look_at_all(record, run_state),
        )
        if not any(found):
            self.passed(record.step)

    def _note(self, record: StepRecord) -> None:
        broken = False in record.finite_W
        self._skipped.add(record.step, ("skipped", "broken")[: 1 + broken] if record.kept_workers == 0 else ())
        self._workers = max(self._workers, len(record.weight_W), len(record.finite_W))
        rejected = left_out(record)
        if rejected is not None and not broken:
            self._left_out.add(record.step, rejected)
        distances = [distance for distance in record.distance_W if distance is not None]
        if len(distances) > 1:
            self._opposed.add(record.step, ("opposed",) if min(distances) > OPPOSED else ())

    def _look_at_workers(self, record: StepRecord, run_state: RunState) -> bool:
        share_W = [self._left_out.share(worker) for worker in range(self._workers)]
        if len(self._left_out) < LEAST or len(share_W) < FEWEST_WORKERS:
            return False
        # Where half of the workers are rejected most of the time, nobody can say which half is wrong.
        usual = sorted(share_W)[len(share_W) // 2]
        rejected = [worker for worker, share in enumerate(share_W) if share > MOST and share >= usual + MORE]
        if not rejected:
            return False
        rate, steps = min(share_W[worker] for worker in rejected), len(self._left_out)
        named = f"{spoken(run_state.ranks(rejected))} {'has' if len(rejected) == 1 else 'have each'} been rejected in"
        self.report(
            record.step,
            run_state,
            why=f"{named} {'at least ' * (len(rejected) > 1)}{100 * rate:.0f} % of {steps} steps, "
            f"the others usually in {100 * usual:.0f} %",
            causes={"data-conflicts": 0.6, "faulty-worker": 0.5},
            workers=rejected,
            evidence={"rejected_share": round(rate, 3), "steps": steps, "usual_share": round(usual, 3)},
            since=min(self._left_out.since(worker) or 0 for worker in rejected),
            about="workers",
        )
        return True

    def _look_at_skips(self, record: StepRecord, run_state: RunState) -> bool:
        skipped, steps = self._skipped.count("skipped"), len(self._skipped)
        if skipped <= MOST * steps:
            return False
        since, broken = self._skipped.since("skipped"), self._skipped.count("broken")
        by_nan = broken > MOST * skipped
        reason = "their gradients were not finite" if by_nan else "the workers did not agree"
        self.report(
            record.step,
            run_state,
            why=f"steering skipped {skipped} of {steps} steps, most of those since step {since}: {reason}",
            causes={"gradients-not-finite": 0.9} if by_nan else {"distance-too-strict": 0.7, "small-batches": 0.6},
            evidence={"skipped": skipped, "of_steps": steps, "skipped_not_finite": broken},
            since=since,
            about="skips",
        )
        return True

    def _look_at_all(self, record: StepRecord, run_state: RunState) -> bool:
        share, steps = self._opposed.share("opposed"), len(self._opposed)
        if steps < FEWEST_DISTANCES or share <= MOST:
            return False
        self.report(
            record.step,
            run_state,
            why=f"all workers were further than {OPPOSED} from the others in {100 * share:.0f} % of {steps} steps: "
            "their gradients cancel each other",
            causes={"nothing-left-in-common": 0.6, "data-conflicts": 0.4},
            evidence={"opposed_share": round(share, 3), "steps_with_distances": steps},
            since=self._opposed.since("opposed"),
            about="distances",
        )
        return True
