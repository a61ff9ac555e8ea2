"""From records to findings: one fault, one leading finding. Without torch."""
