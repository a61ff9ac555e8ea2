"""The numbers for people who do not read charts."""

import re
import time
from dataclasses import replace

import pytest

import invented_runs as invented

pytest.importorskip("bokeh")

from unisono.diagnose.heard import LIVE_SECONDS
from unisono.records import HeartbeatRecord
from unisono.show.page.findings_section import headlines, verdict
from unisono.show.page.page_model import PageModel

SAME = {"same_content_W": (0, 0, 0, 3), "same_indices_W": (0, 0, 0, 3), "compared": 4, "indexed": 4, "fresh": True}


def cards(*records):
    page_model = PageModel()
    for record in (invented.header(), invented.attempt(4), *records):
        page_model.see(record)
    found = re.findall(r'class="name">(.*?)</p><p class="large">(.*?)</p><p>(.*?)</p>', headlines(page_model))
    return {name: (value, words) for name, value, words in found}, page_model


def copies(count, first=0, number=1):
    return [replace(one, **SAME) for one in invented.steps(4, count, first=first, number=number)]


def test_of_a_healthy_run():
    found, _ = cards(*invented.steps(4, 200))
    assert found["Effective workers"][0].endswith(" of 4")
    assert 2 < float(found["Effective workers"][0].split()[0]) <= 4
    assert found["Lost to a fault"][0] == "nothing"
    assert found["Steps recorded"] == ("200", "of 4 workers; gradients heard at 200 of them")
    assert found["Cost of listening"][0] == "0.4 %"


def test_workers_that_repeat_others_do_not_count():
    found, _ = cards(*copies(200))
    assert found["Effective workers"] == ("2 of 4", "2 workers repeated another&#x27;s batch")
    value, words = found["Lost to a fault"]
    seconds = 0.5 * 4 * 200 * 0.101
    assert float(value.split()[0]) == pytest.approx(seconds / (60 if "minutes" in value else 1), rel=0.02)
    assert "50 % lost" in words


def test_one_equal_batch_in_a_healthy_run_changes_nothing():
    steps = list(invented.steps(4, 300))
    steps[150] = replace(steps[150], **SAME)
    found, page_model = cards(*steps, invented.end(299))
    assert "healthy" in verdict(page_model)
    assert "repeated" not in found["Effective workers"][1]


def test_a_fault_that_was_mended_in_a_later_attempt_no_longer_counts():
    mended = invented.steps(4, 600, first=0, number=2, compared=4, fresh=True)
    found, page_model = cards(*copies(100), invented.attempt(4, 2), *mended)
    assert [one.state for one in page_model.checkup().findings if one.code == "UN101"] in ([], ["resolved"])
    assert "repeated" not in found["Effective workers"][1]


def test_a_worker_whose_gradients_are_no_numbers_does_not_help():
    broken = {"finite_W": (True, False, True, True), "nonfinite_W": (0, 3, 0, 0)}
    found, _ = cards(*invented.steps(4, 100), *invented.steps(4, 50, first=100, **broken))
    assert found["Effective workers"] == ("at most 3 of 4", "rank 1 does not help (UN404)")
    assert "at least 25 % lost" in found["Lost to a fault"][1]


def test_when_nothing_could_be_checked_the_verdict_is_not_green():
    assert 'class="verdict broken"' in verdict(cards()[1])


def test_a_job_is_running_until_nothing_has_come_for_half_a_minute(monkeypatch):
    _, page_model = cards(*invented.steps(4, 40), HeartbeatRecord(1, 39, time.time()))
    assert (page_model.checkup().heard.ended, "so far" in verdict(page_model)) == ("running", False)
    later = time.time() + LIVE_SECONDS
    monkeypatch.setattr(time, "time", lambda: later)
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert page_model.checkup().verdict == "broken"
    assert "Broken: the job was killed, or ended without a word, after step 39" in verdict(page_model)
