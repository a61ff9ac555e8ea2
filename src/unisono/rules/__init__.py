"""One rule a class, one class a file; `RULES` holds them in order of their codes."""

from unisono.rules._rule import Rule
from unisono.rules.un101_duplicated_data import DuplicatedData

RULES: tuple[type[Rule], ...] = (DuplicatedData,)

__all__ = ["RULES", "Rule"]
