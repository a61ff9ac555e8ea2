"""Exact evidence: taken on the training thread, hashed on the listening thread, laid side by side on rank 0."""
