"""One weighting a file; the public names stand in `unisono.weightings`."""
