"""What is usual in a run, and what is not; bounded memory, however long it runs."""

from unisono.diagnose.statistics.opposition import Opposition
from unisono.diagnose.statistics.order import Blocks, Window, gaps_to_others, median, median_of_others, scatter
from unisono.diagnose.statistics.peers import HARD, LEARNT, Peers
from unisono.diagnose.statistics.relation import Relation

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
