"""The fold and the norms on a GPU: one launch for many gradients."""
