"""What is usual in a run, and what is not; bounded memory, however long it runs."""

from unisono.history._opposition import Opposition
from unisono.history._order import (
    Blocks,
    Window,
    gaps_to_others,
    median,
    median_of_others,
    scatter,
)
from unisono.history._peers import HARD, LEARNT, Peers
from unisono.history._relation import Relation

__all__ = [
    "HARD",
    "LEARNT",
    "Blocks",
    "Opposition",
    "Peers",
    "Relation",
    "Window",
    "gaps_to_others",
    "median",
    "median_of_others",
    "scatter",
]
