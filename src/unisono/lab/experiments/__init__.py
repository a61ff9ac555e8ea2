"""The experiments behind the specification, run again."""
