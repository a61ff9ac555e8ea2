"""The charts of the page, one kind a file."""
