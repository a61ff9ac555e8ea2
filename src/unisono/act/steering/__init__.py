"""Steering: how much each worker's gradient counts is decided inside backward, by all workers together.

W = workers, K = sketch length, N = numbers of a bucket, S = numbers of a worker's slice of it.
"""
