"""Between ranks: the listening thread, the store, gloo; and the collectives of steering and guard."""
