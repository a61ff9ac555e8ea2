"""Puts listening together: `unisono.attach`, the run that is recorded, the end of a process."""
