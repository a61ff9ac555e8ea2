"""What unisono does when asked: weightings, steering, micro-batches, the guard and its actions."""
