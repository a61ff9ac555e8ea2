"""Limits for the guard from a recorded run. Without torch."""
