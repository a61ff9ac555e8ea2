"""A training job in several files, started with `-m spread.train`."""
