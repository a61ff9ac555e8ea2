"""For a user's own test suite: run a training script and assert that it is healthy."""
