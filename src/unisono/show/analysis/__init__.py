"""Runs looked through: what they hold, what changed between two of them, what they cost."""
