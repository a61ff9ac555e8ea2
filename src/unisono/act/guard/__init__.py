"""The guard: workers report after every synchronised backward pass, the first one decides, and all do the same."""
