"""Rank 0: from what all ranks said to records of plain numbers."""
