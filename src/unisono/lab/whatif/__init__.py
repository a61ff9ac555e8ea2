"""What a weighting would have done in a recorded run. Nothing is trained."""
