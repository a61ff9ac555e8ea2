"""For a user's own test suite: run a training script and assert that it is healthy.

from unisono.testing import run_script

def test_training_is_healthy():
    run_script("train.py", workers=2, steps=50).assert_healthy()
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono.cli.bounded_run import Trial, try_out
from unisono.common.errors import UserError
from unisono.records.finding import Finding
from unisono.show.text.findings import as_text


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the first steps of a script have shown."""

    run_dir: Path
    """Kept, for `unisono diagnose`."""

    trial: Trial

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for checkup in self.trial.checkups for finding in checkup.findings)

    def assert_healthy(self, allow: Collection[str] = ()) -> None:
        """Raises `AssertionError` on an open warning or worse, when the script failed, or when too little was heard.

        It takes 32 heard steps of two or more workers to call a training healthy.

        :param allow: Codes or slugs of findings that are accepted.
        """
        names = [allow] if isinstance(allow, str) else allow
        wrong = [
            found
            for found in self.findings
            if found.at_least("warning") and found.state == "open" and not {found.code, found.slug} & {*names}
        ]
        unknown = any(checkup.is_broken or checkup.heard.too_little for checkup in self.trial.checkups)
        if self.trial.failure or wrong or unknown:
            raise AssertionError(self._told("the training is not healthy"))

    def assert_found(self, code: str, ranks: Sequence[int] | None = None) -> None:
        """Raises `AssertionError` unless this was found, on exactly these ranks if they are given.

        :param code: Its code or slug.
        """
        named = [found for found in self.findings if code in (found.code, found.slug)]
        if not named:
            raise AssertionError(self._told(f"{code} was not found"))
        if ranks is not None and all(found.ranks != tuple(sorted(ranks)) for found in named):
            raise AssertionError(
                self._told(f"{code} should be found on ranks {sorted(ranks)}, not {list(named[0].ranks)}")
            )

    def _told(self, complaint: str) -> str:
        reports = [as_text(checkup) for checkup in self.trial.checkups]
        return "\n\n".join([complaint, *filter(None, [self.trial.failure]), *reports, f"run: {self.run_dir}"])


def run_script(script: str | os.PathLike[str], workers: int = 4, steps: int = 50, args: Sequence[str] = ()) -> Outcome:
    """Starts the script with torchrun on this machine, unisono listening, and stops it after so many steps.

    Its output goes to stderr.
    """
    if not Path(script).is_file():
        raise UserError(f"The script should be a file. Found `{os.fspath(script)}`, which is not in {os.getcwd()}.")
    run_dir = Path(tempfile.mkdtemp(prefix=f"unisono-{Path(script).stem}-"))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    unisono = [sys.executable, "-m", "unisono", "run", "--out", str(run_dir)]
    environment = {name: value for name, value in os.environ.items() if name != "UNISONO"}
    command = [*unisono, "--", *launcher, os.fspath(script), *args]
    return Outcome(run_dir, try_out(command, environment, run_dir, steps))
