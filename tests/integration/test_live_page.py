"""The live page in a real browser: a job writes, dies and comes back, and the page follows."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import invented_runs as invented
from browser import chromium, needs_browser
from html_payloads import MARK, PAYLOADS

pytest.importorskip("bokeh")
pytest.importorskip("playwright")

pytestmark = needs_browser()

SOON = 120
"""Seconds after which a test fails rather than waits; a browser and two servers need long on a busy machine."""

JOB = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import invented_runs as invented
from unisono.records.runfile import RunWriter

folder, number, first, count, rank = Path(sys.argv[1]), *map(int, sys.argv[2:6])
opposed = rank if rank >= 0 else None
writer = RunWriter(folder)
if writer.needs_header:
    writer.write(invented.header("followed"))
writer.write(invented.attempt(4, number, first))
for record in invented.steps(4, count, first=first, number=number, opposed=opposed, seed=first):
    writer.write(record)
    writer.sync()
    time.sleep(0.01)
print("written", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def open_tab():
    with chromium() as tabs:
        yield tabs


class Job:
    """A process that writes a run and then goes on without writing."""

    def __init__(self, folder, number=1, first=0, count=300, opposed=-1):
        code = JOB.format(tests=str(Path(__file__).parents[1]))
        arguments = [str(folder), *map(str, (number, first, count, opposed))]
        self.process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def wait_until_written(self):
        assert self.process.stdout.readline() == "written\n"


@pytest.fixture
def job():
    started = []

    def start(*arguments, **options):
        started.append(Job(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def live():
    """Starts `unisono live RUN`; gives its address."""
    started = []

    def start(run):
        command = [sys.executable, "-m", "unisono", "live", str(run), "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        first, second = process.stdout.readline(), process.stdout.readline()
        assert re.search(r"ssh -L \d+:127\.0\.0\.1:\d+ ", second), second
        return re.search(r"http://127\.0\.0\.1:\d+/", first)[0]

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON) == 0
        assert process.stderr.read() == ""
        process.stdout.close()
        process.stderr.close()


NEWEST = """(() => {
  const loss = (Bokeh.documents[0]?.roots() ?? []).find(figure => figure.name === "loss");
  return loss ? Math.max(...loss.renderers[1].data_source.data.x) : -1;
})()"""


def steps_shown(tab):
    """The newest step of the loss chart."""
    return tab.page.evaluate(NEWEST)


def wait_for_step(tab, step):
    deadline = time.monotonic() + SOON
    while steps_shown(tab) < step:
        assert time.monotonic() < deadline, f"step {step} never came; the page shows {steps_shown(tab)}"
        tab.page.wait_for_timeout(200)


def test_it_follows_a_job_through_death_and_restart_without_being_loaded_again(open_tab, live, job, tmp_path):
    first = job(tmp_path / "run")
    while not (tmp_path / "run" / "run.jsonl").exists():
        time.sleep(0.05)
    tab = open_tab()
    tab.page.goto(live(tmp_path / "run"))
    tab.page.wait_for_selector("#chart-loss canvas")
    tab.page.evaluate("window.kept = 'since the page was loaded'")
    seen = steps_shown(tab)
    wait_for_step(tab, min(seen + 20, 299))
    first.wait_until_written()
    wait_for_step(tab, 299)
    assert "Nothing was found" in tab.page.inner_text("#findings")
    first.kill()
    again = job(tmp_path / "run", number=2, first=200, count=250, opposed=2)
    again.wait_until_written()
    wait_for_step(tab, 449)
    tab.page.wait_for_selector("#finding-UN501", timeout=1_000 * SOON)
    assert "rank 2" in tab.page.inner_text("#finding-UN501 .meta")
    tab.page.locator("#finding-UN501 .jump").click()
    assert tab.page.evaluate("window.kept") == "since the page was loaded"
    assert tab.errors == []


def test_several_runs_stand_in_a_list(open_tab, live, tmp_path):
    for name in ("one", "two"):
        invented.run(tmp_path / name, count=30, name=name)
    tab = open_tab()
    address = live(tmp_path)
    tab.page.goto(address)
    assert set(tab.page.locator("#runs a").all_inner_texts()) == {"one", "two"}
    invented.run(tmp_path / "three", count=30, name="three")
    tab.page.wait_for_selector("text=three", timeout=1_000 * SOON)
    tab.page.click("text=two")
    tab.page.wait_for_selector("body[data-ready]", timeout=1_000 * SOON)
    assert tab.page.inner_text("h1") == "two"
    tab.page.click(".brand a")
    assert tab.page.url == address
    assert tab.errors == []


def test_names_that_would_be_scripts_are_text_on_the_list_and_on_the_page(open_tab, live, tmp_path):
    for place, payload in enumerate(PAYLOADS[:8]):
        folder = tmp_path / f"{place} {payload.replace('/', '').replace(chr(0), '')}"
        invented.write(
            folder, invented.header(payload, payload), invented.attempt(2, host=payload), *invented.steps(2, 20)
        )
    tab = open_tab()
    tab.page.goto(live(tmp_path))
    assert MARK in tab.page.inner_text("#runs")
    tab.page.locator("#runs a").first.click()
    tab.page.wait_for_selector("body[data-ready]", timeout=1_000 * SOON)
    assert tab.page.evaluate("window.executed") is None
    assert tab.errors == []
