"""How unisono finds gradients, groups and synchronisation in each kind of wrapped model."""
