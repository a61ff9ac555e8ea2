"""Steps that the guard kept from training: rules look only at those that were taken."""

from __future__ import annotations

from collections.abc import Mapping

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.records import DecisionRecord
from unisono.records.decision_text import done_in_words, ranks_of


def tell_what_was_kept_away(
    rule: Rule, record: DecisionRecord, run_state: RunState, measure: str, causes: Mapping[str, float]
) -> None:
    """:param measure: The evidence by which the guard judged."""
    if measure not in record.evidence or record.dry:
        return
    # The guard decides before a step is over, and long before it is written down.
    rule.not_before = record.step
    rule.report(
        record.step,
        run_state,
        why=f"{record.reason}; the guard {done_in_words(record)}",
        causes=causes,
        ranks=ranks_of(record),
        # No graver than the rule may be.
        severity=rule.severity if "halt" in record.action else "warning",
        evidence={measure: record.evidence[measure]},
        about="guard",
    )
