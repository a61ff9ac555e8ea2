"""Run records in, something to look at out. Works without torch."""
