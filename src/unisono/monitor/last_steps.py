"""What a rank leaves behind beside the run file: its last steps, and who it knows to have gone."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from unisono.common.whole_file import replacing
from unisono.exchange.last_word import LastWord, of_error, of_exit
from unisono.exchange.thread import ExchangeThread
from unisono.listen.messages import RankStep
from unisono.monitor import exit_hooks
from unisono.monitor.noted_exit import exit_since
from unisono.records import DepartureRecord, LocalStep, to_line

TRIAL = "UNISONO_TRIAL"
"""Set by `unisono smoke` and `unisono.testing`, which stop a job by SIGTERM when they have seen enough."""


class LastSteps:
    def __init__(self, rank: int, length: int) -> None:
        self._rank = rank
        self.steps: deque[RankStep] = deque(maxlen=length)
        self.departures: list[DepartureRecord] = []
        """Of ranks whose end this one has seen."""

    def write(self, exchange: ExchangeThread) -> None:
        facts = exchange.run_facts
        if facts is not None:
            attempt = facts["attempt"]
            steps = [_local(signal, attempt, self._rank) for signal in list(self.steps)]
            word = exchange.last_word
            own = [self.own_departure(exchange, word)] if word is not None and word.ended != "finished" else []
            write_rank_file(facts["run_dir"], self._rank, [*steps, *own, *self.departures])

    def try_to_write(self, exchange: ExchangeThread) -> None:
        with contextlib.suppress(Exception):
            self.write(exchange)

    def tell(self, exchange: ExchangeThread, departures: Sequence[DepartureRecord]) -> None:
        self.departures += departures
        self.try_to_write(exchange)

    def take_back_silence(self, exchange: ExchangeThread) -> None:
        """Of rank 0, which is heard again."""
        self.departures[:] = [one for one in self.departures if one.how != "silence"]
        self.try_to_write(exchange)

    def own_departure(self, exchange: ExchangeThread, word: LastWord) -> DepartureRecord:
        attempt = 0 if exchange.run_facts is None else exchange.run_facts["attempt"]
        return DepartureRecord(attempt, exchange.newest, word.time, self._rank, word.how, word.detail, self._rank)


def write_rank_file(run_dir: str, rank: int, records: Sequence[LocalStep | DepartureRecord]) -> None:
    """In one write: called while the process is dying."""
    folder = Path(run_dir)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(folder / f"rank-{rank}.jsonl") as file:
        file.write("".join(to_line(record) + "\n" for record in records).encode())


def last_word(error: BaseException | None, exits: bool, backward_error: str, trained_until: float = 0.0) -> LastWord:
    """How this rank goes; nothing is wrong where it is closed in good order, or a trial was stopped.

    :param error: What leads through the end of listening, or ends the process.
    :param exits: The process is about to end.
    :param backward_error: What the last backward pass failed with.
    :param trained_until: The time at which the last step ended.
    """
    how, detail = "exit" if exits else "", ""
    if error is not None and not isinstance(error, StopIteration | GeneratorExit):
        how, detail = of_error(error)
    elif exits and (leaves := exit_since(trained_until)) is not None:
        how, detail = of_exit(*leaves)
    if LastWord(how, detail).exit_code and exit_hooks.warned(trained_until):
        # Its own handler has ended it. One that saved a checkpoint and ended with 0 has finished.
        return signalled()
    if how == "exit" and backward_error:
        # Somebody caught it and ended the process, as `torch.multiprocessing` does.
        how, detail = "exception", backward_error
    return LastWord(how, detail, time=time.time())


def signalled() -> LastWord:
    """SIGTERM ends this process. A trial that is stopped so has come to its end."""
    return LastWord("" if TRIAL in os.environ else "signal", exit_hooks.SIGTERM, time=time.time())


def _local(signal: RankStep, attempt: int, rank: int) -> LocalStep:
    norm = None if signal.squared_norm is None else signal.squared_norm**0.5
    return LocalStep(
        attempt=attempt,
        rank=rank,
        step=signal.step,
        time=signal.time,
        loss=signal.loss,
        finite=signal.finite,
        norm=norm,
        compute=signal.compute,
        seconds=signal.seconds,
    )
