"""UN304: buffers that nobody keeps equal."""

from __future__ import annotations

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState, minority, opposed
from unisono.records import StepRecord


class BuffersDiffer(Rule):
    """The workers keep different buffers (running statistics)"""

    code, slug, severity = "UN304", "buffers-differ", "warning"
    source = "open-mmlab/mmdetection#2539; pytorch DistributedDataParallel, broadcast_buffers"
    meaning = (
        "Buffers such as the running mean and variance of BatchNorm differ between workers, and DDP was told not to "
        "broadcast them. Each worker evaluates with statistics of its own share of the data, and a checkpoint holds "
        "only those of the worker that saves. Buffers that DDP broadcasts are not looked at: they differ at the end of "
        "every step and are made equal by the next forward pass."
    )
    needs = "a model with buffers that DDP does not broadcast"
    causes = {
        "broadcast-buffers-off": "DDP was built with broadcast_buffers=False",
        "changed-on-some-ranks": "buffers were loaded or changed on some workers only",
    }
    remedies = {
        "broadcast-buffers-off": (
            "leave broadcast_buffers (newer torch: forward_sync_buffers) of DistributedDataParallel at its default",
            "average the statistics: model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before wrapping "
            "(GPU only)",
        ),
        "changed-on-some-ranks": ("load and change buffers on every rank, before wrapping the model",),
    }

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        if "buffers" not in record.audits:
            return
        if not record.buffers_W:
            self.passed(record.step)
            return
        one_against_all = bool(minority(record.buffers_W))
        self.report(
            record.step,
            run_state,
            why=f"buffers after step {record.step}: {opposed(record.buffers_W, run_state)}",
            causes={"broadcast-buffers-off": 0.9} | ({"changed-on-some-ranks": 0.5} if one_against_all else {}),
            workers=minority(record.buffers_W),
        )
