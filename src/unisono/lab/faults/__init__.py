"""Training jobs on this machine, honest or with a fault put into them."""
