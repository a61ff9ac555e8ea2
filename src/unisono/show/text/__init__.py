"""What was found, as a terminal or an issue shows it."""
