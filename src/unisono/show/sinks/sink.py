"""What a sink is: the options a user chooses, and the open form that readings and findings are handed to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from unisono.common.errors import UserError
from unisono.records import Floats
from unisono.records.finding import Finding


@dataclass(frozen=True, slots=True)
class SinkRun:
    """What a sink is told about the run."""

    name: str
    directory: Path
    part: str = ""
    """Set where a process trains several models, as in `model-2`: their numbers must not mix."""

    ranks: tuple[int, ...] = ()
    """The launcher's number of each worker."""

    @classmethod
    def of(cls, directory: Path, part: str, ranks: Sequence[int]) -> SinkRun:
        """`part` is the end of `directory` below the process's own run, or empty."""
        depth = len(Path(part).parts)
        name = directory.name if not part else f"{directory.parents[depth - 1].name}/{part}"
        return cls(name, directory, part, tuple(ranks))


@dataclass(frozen=True, slots=True)
class SinkReading:
    """The numbers of one step, those that are known."""

    step: int
    time: float
    values: Mapping[str, float]
    values_W: Mapping[str, Floats] = field(default_factory=dict)

    def followed_by(self, later: SinkReading) -> SinkReading:
        """One reading in the place of both: the later step, and of each number the newest."""
        return SinkReading(later.step, later.time, {**self.values, **later.values}, {**self.values_W, **later.values_W})


class OpenSink(ABC):
    """May be slow and may raise: it is called from a thread that serves no other sink."""

    seconds: float = 1.0
    """Between two deliveries of readings. Findings are delivered at once."""

    @abstractmethod
    def metrics(self, readings: Sequence[SinkReading]) -> None:
        """What has come since the last call, oldest first."""

    @abstractmethod
    def finding(self, finding: Finding) -> None:
        """A finding, or one handed over before that has become graver. If this raises it comes again later."""

    @abstractmethod
    def close(self, verdict: str) -> None:
        """The run has ended."""


class Sink(ABC):
    """A place for readings and findings besides the run file. Made before training starts, opened on its own thread."""

    name: ClassVar[str]
    package: ClassVar[str] = ""
    """The module it cannot do without."""

    only_latest: ClassVar[bool] = False
    """Readings that wait are merged into one."""

    def check_installed(self) -> None:
        if self.package and not _is_there(self.package):
            raise UserError(
                f"the sink `{self.name}` needs a package that provides `{self.package}`. Found none. "
                f'Install it with: pip install "unisono[{self.name}]"'
            )

    @abstractmethod
    def open(self, run: SinkRun) -> OpenSink: ...


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):
        return False
