"""What was recorded, made readable: as text, as tables, as a page."""

REPORT = "report.html"
"""The page's name, unless another is asked for."""
