"""What a rank says when it stops to report: that all is well, or what has happened to it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from unisono.common.errors import in_one_line
from unisono.records.departure_order import blames_a_peer

LAST_WORD = "last-word"
GOOD_EXIT = "exit code 0"


@dataclass(frozen=True, slots=True)
class LastWord:
    how: str = ""
    """As in a `DepartureRecord`; empty where listening was closed in good order."""

    detail: str = ""
    step: int = -1
    """The last one that the rank has finished."""

    time: float = 0.0
    unheard_since: int | None = None
    """The listening thread has done nothing since this step; whoever closed it says so."""

    @property
    def ended(self) -> str:
        """As in an `EndRecord`."""
        if self.exit_code:
            return "crashed"
        return {"exception": "crashed", "signal": "killed"}.get(self.how, "finished")

    @property
    def exit_code(self) -> str:
        """In words, if it was not 0."""
        return self.detail if self.how == "exit" and self.detail != GOOD_EXIT else ""

    def message(self) -> dict[str, Any]:
        return {"kind": LAST_WORD, **asdict(self)}

    @classmethod
    def of(cls, message: dict[str, Any]) -> LastWord:
        return cls(**{field.name: message[field.name] for field in fields(cls)})


def of_error(error: BaseException) -> tuple[str, str]:
    """How it ends a process, and a line about it."""
    if isinstance(error, KeyboardInterrupt):
        return "signal", "SIGINT"
    if isinstance(error, SystemExit):
        # Python prints anything but a number, and ends with 1.
        code = int(error.code) if isinstance(error.code, int) else int(error.code is not None)
        return of_exit(code, "" if error.__context__ is None else in_one_line(error.__context__))
    return "exception", in_one_line(error)


def of_exit(code: int, caught: str = "") -> tuple[str, str]:
    """:param caught: The exception, in a line, that led to it: `torch.multiprocessing` ends a process so."""
    return ("exception", caught) if code and blames_a_peer(caught) else ("exit", f"exit code {code}")
