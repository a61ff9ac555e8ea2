"""`unisono demo`: the same training twice, healthy and with a fault."""
