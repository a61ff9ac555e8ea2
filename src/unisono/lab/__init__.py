"""Trials on this machine: faults on demand, the demo, what listening costs, what a weighting would have done."""
