"""UN305: trainable parameters that are not trained."""

from __future__ import annotations

from collections.abc import Mapping

from unisono.diagnose.rules.shared.rule import Number, Rule
from unisono.diagnose.rules.shared.run_state import RunState, each
from unisono.records import FactsRecord

MOST_NAMES = 5


class ParametersNotOptimised(Rule):
    """Some trainable parameters are not trained"""

    code, slug, severity = "UN305", "parameters-not-optimised", "warning"
    source = "ohhhyeahhh/SiamCAR#18; ACEsuit/mace#525; pytorch/pytorch#85671"
    meaning = (
        "The parameters named require gradients, but no optimizer that steps holds them, so they keep their initial "
        "values (warning); or they have had no gradient so far, so they are not used by the loss (info). Found by "
        "comparing the model's parameters with the optimizers' groups after some twenty steps."
    )
    needs = "about twenty steps"
    causes = {
        "missing-from-optimizer": "the parameters were not given to any optimizer that steps",
        "not-used": "the parameters have no part in the loss",
    }
    remedies = {
        "missing-from-optimizer": (
            "give the optimizer all parameters, model.parameters(), after the last layer has been added to the model; "
            "or add the missing ones to its groups",
            "if they should stay as they are, set requires_grad = False on them before wrapping the model",
        ),
        "not-used": ("use these layers in forward(), or remove them, or set requires_grad = False on them",),
    }
    cleared_after = 1

    def on_facts(self, record: FactsRecord, run_state: RunState) -> None:
        # Of replaced parameters UN302 tells: the optimizer holds those that have taken their place.
        if record.topic != "parameters" or run_state.replaced:
            return
        forgotten = _names(record, "not optimised", run_state)
        without = [name for name in _names(record, "never with gradient", run_state) if name not in forgotten]
        if forgotten:
            self._tell(record, run_state, forgotten, "are in no optimizer", {"missing-from-optimizer": 0.95}, "warning")
        if without:
            self._tell(record, run_state, without, "never had a gradient", {"not-used": 0.8}, "info")
        if not forgotten and not without:
            self.passed(record.step)

    def _tell(
        self,
        record: FactsRecord,
        run_state: RunState,
        names: list[str],
        what: str,
        causes: Mapping[str, float],
        severity: str,
    ) -> None:
        count = f"{len(names)} trainable parameter{'s' if len(names) > 1 else ''}"
        evidence: dict[str, Number] = {
            what: ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
        }
        why = f"{count} {what if len(names) > 1 else what.replace('are', 'is', 1)}: {evidence[what]}"
        self.report(record.step, run_state, why=why, causes=causes, severity=severity, evidence=evidence, about=what)


def _names(record: FactsRecord, key: str, run_state: RunState) -> list[str]:
    """Of all workers, each name once."""
    texts = [text for text in each(record, key, run_state.world) if text]
    return list(dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip()))
