"""Gradient Agreement Filtering ("Beyond Gradient Averaging in Parallel Optimization", arXiv 2412.18052), run again."""
