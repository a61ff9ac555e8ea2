"""How large a batch still pays on one task, and the noise scale that should have told it beforehand."""
