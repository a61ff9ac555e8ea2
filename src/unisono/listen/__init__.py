"""One rank alone, on the training thread: its steps are followed, its gradients and evidence taken."""
