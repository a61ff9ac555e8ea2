"""One place to send numbers and findings to a file; the public names stand in `unisono.sinks`."""
