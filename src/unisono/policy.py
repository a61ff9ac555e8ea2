"""Rows of your own for the guard: when something should be done, and what."""

from unisono.act.guard.policy import Row
from unisono.act.guard.step_state import Situation

__all__ = ["Row", "Situation"]
