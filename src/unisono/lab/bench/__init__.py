"""What listening costs on this machine: one read of the gradients, a step of training, a steered step."""
