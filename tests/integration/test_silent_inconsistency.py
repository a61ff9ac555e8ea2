"""`unisono lab paper silent-inconsistency --small`: real ranks, a tiny model, three settings."""

import json
import subprocess
import sys

import pytest


def run(out):
    command = [sys.executable, "-m", "unisono", "lab", "paper", "silent-inconsistency", "--small", "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_small(tmp_path):
    out = tmp_path / "results.json"
    done = run(out)
    assert (done.returncode, done.stdout) == (0, f"3 of 3 runs are in {out}\n"), done.stderr
    runs = {one["setting"]: one for one in json.loads(out.read_text())}
    assert list(runs) == ["synchronised", "dropout-identical", "wrong-labels"]
    healthy = runs["synchronised"]
    assert [finding for finding in healthy["findings"] if finding["severity"] != "info"] == []
    assert healthy["held_out_loss"] < 0.5 * healthy["loss_mean"]["start"]
    assert (healthy["streams"], runs["dropout-identical"]["streams"]) == (4, 1)
    assert runs["dropout-identical"]["found"]
    assert runs["wrong-labels"]["named"]
    assert runs["wrong-labels"]["loss_std"]["mean"] > 3 * healthy["loss_std"]["mean"]
    again = run(out)
    assert (again.stdout, again.stderr) == (done.stdout, "")
