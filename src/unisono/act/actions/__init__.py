"""What the guard can do, one action a file. Every one is carried out on all workers at the same point, or on none."""
