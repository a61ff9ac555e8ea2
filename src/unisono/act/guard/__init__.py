"""The guard: workers meet after every synchronised backward pass, the first of them decides, and all do the same."""
