"""The page as a file: everything inside, nothing from outside, and nothing a run file says becomes more than text."""

import json
import re
from html.parser import HTMLParser

import pytest

import invented_runs as invented

pytest.importorskip("bokeh")

from unisono.records import ValidationRecord
from unisono.show.page.page_file import render
from unisono.show.page.page_model import read_page_model


def page(folder, *records, **options):
    run = invented.write(folder, *records) if records else invented.run(folder, **options)
    return render(read_page_model(run))


def drawn(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def elements(html):
    parser = Elements()
    parser.feed(re.sub(r"<script>.*?</script>", "", html, flags=re.S))
    return parser.found


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The page of a run in which nothing happened."""
    return page(tmp_path_factory.mktemp("usual"))


def test_all_sections_are_there(usual):
    assert re.findall(r"<h2>(.*?)</h2>", usual) == [
        "Findings",
        "Over time",
        "Rank by step",
        "At one reading",
        "Noise and scaling",
        "Actions",
        "The run",
    ]


def test_nothing_is_fetched_from_anywhere(usual):
    for tag, attributes in elements(usual):
        assert tag not in ("iframe", "object", "embed", "img", "video", "form"), tag
        for name in ("src", "href", "action", "data"):
            assert not re.match(r"\w+:|//", attributes.get(name, "").removeprefix("data:")), (tag, attributes)


def test_only_the_scripts_that_the_policy_names_may_run(usual):
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', usual)[1]
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert policy.count("sha256-") == usual.count("<script>") == 2


def test_every_chart_has_a_heading_a_label_and_words(usual):
    figures = re.findall(r"<figure.*?</figure>", usual, re.S)
    assert len(figures) == len(drawn(usual)["items"][0]["roots"]) >= 14
    for figure in figures:
        assert re.search(r"<h3>.+?</h3>", figure)
        assert re.search(r'role="img" aria-label=".+?"', figure)
        assert re.search(r"<figcaption[^>]*><p>.+?</p>", figure, re.S)


def test_charts_about_workers_are_left_out_with_one(tmp_path):
    html = page(tmp_path, invented.header(), invented.attempt(1), *invented.steps(1, 30, matrices=False))
    names = set(drawn(html)["items"][0]["roots"].values())
    assert "chart-loss" in names
    assert not {name for name in names if "map" in name}


def test_a_run_without_steps_still_has_a_page(tmp_path):
    html = page(tmp_path, invented.header(), invented.attempt(4))
    assert "Broken: the job was killed, or ended without a word, before its first step, and nothing was heard." in html
    assert drawn(html)["readings"] == []


def test_a_killed_run_is_told_from_one_that_ended(tmp_path):
    killed = page(tmp_path / "a", invented.header(), invented.attempt(2), *invented.steps(2, 30))
    ended = page(tmp_path / "b", workers=2, count=30)
    assert "killed, or gone without a word" in killed
    assert "not written down" in ended


def test_actions_are_listed(tmp_path):
    acted = invented.decision(7, ranks=(2,), evidence={"norm ratio": 12.345}, row="non-finite", outcome="an outcome")
    html = page(tmp_path, invented.header(), invented.attempt(4), *invented.steps(4, 20), acted)
    cells = ("7", "skipped on all workers", "2", "rank 1&#x27;s loss is not finite", "norm ratio 12.35", "an outcome")
    assert "".join(f"<td>{cell}</td>" for cell in (*cells, "non-finite", "1-7-1")) in html
    assert "The guard acted once: 1 step skipped (step 7)." in html
    assert "unisono only listened" not in html


def test_steps_that_the_guard_skipped_are_not_the_scripts(tmp_path):
    skipped = invented.steps(4, 20, skipped_steps=lambda step: 3)
    acted = invented.decision(7), invented.decision(9, "roll-back, skip"), invented.decision(11, dry=True)
    html = page(tmp_path, invented.header(), invented.attempt(4), *skipped, *acted)
    assert "The script or its loss scaler skipped 1 step." in html


def test_a_run_that_was_steered_says_so(tmp_path):
    fields = invented.steered(4, lambda step: range(4) if step % 10 == 0 else (3,) if step % 2 else ())
    skipped = {"skipped_steps": lambda step: step // 10 + 3}
    html = page(tmp_path, invented.header(), invented.attempt(4), *invented.steps(4, 100, **fields, **skipped))
    assert "unisono only listened" not in html
    assert "unisono steered: kept 3.44 of 4 workers on average, 10 steps skipped, rank 3 left out of 56 %" in html
    assert "The script or its loss scaler skipped 2 steps." in html
    assert "chart-kept_workers" in set(drawn(html)["items"][0]["roots"].values())


def test_a_run_that_was_not_steered_says_so(tmp_path):
    html = page(tmp_path, workers=4, count=30)
    assert "unisono only listened: it changed nothing in this run" in html
    assert "chart-kept_workers" not in set(drawn(html)["items"][0]["roots"].values())


def test_a_validation_has_its_chart_also_behind_the_last_step(tmp_path):
    given = [ValidationRecord(1, step, 1e9 + step, 0, step / 100) for step in (-1, 9, 19, 29)]
    records = (*invented.steps(4, 20), *given[:3], *invented.steps(4, 10, first=20), given[3])
    html = page(tmp_path, invented.header(), invented.attempt(4), *records)
    assert "chart-validation" in set(drawn(html)["items"][0]["roots"].values())
    assert "The line goes from 0.09 to 0.29; all values lie between 0.09 and 0.29." in html
    plain = page(tmp_path, workers=4, count=30)
    assert "chart-validation" not in set(drawn(plain)["items"][0]["roots"].values())


def test_ranks_of_a_sub_group_are_named_by_their_own_numbers(tmp_path):
    attempt = invented.attempt(3, ranks=(1, 5, 9))
    html = page(tmp_path, invented.header(), attempt, *invented.steps(3, 60))
    assert '<th scope="col">rank 9</th>' in html
    labels = re.findall(r'"major_label_overrides":(\{.*?\}|\[.*?\]\})', json.dumps(drawn(html)).replace(" ", ""))
    assert any('"9"' in label for label in labels)


def test_markup_in_names_stays_text(tmp_path):
    payload = '"><img src={} onerror=alert(1)></script><script>alert(1)</script>'
    named = {field: payload.format(field) for field in ("run", "script", "host", "group", "note")}
    html = page(
        tmp_path,
        invented.header(named["run"], named["script"]),
        invented.attempt(4, host=named["host"], groups=(named["group"], *invented.GROUPS[1:])),
        *invented.steps(4, 40),
        invented.decision(3, named["note"], named["note"], row=named["note"], outcome=named["note"]),
    )
    assert [attributes for tag, attributes in elements(html) if tag == "img"] == []
    # Groups are shown only where layers are, and shortened.
    assert {field for field in named if f"src={field} " not in html} <= {"group"}
    assert html.count("<script") == 3
    assert not [name for _, attributes in elements(html) for name in attributes if name.startswith("on")]


def test_a_thousand_ranks_fit_into_three_megabytes(tmp_path):
    html = page(tmp_path, workers=1_024, count=130, matrices=False)
    assert len(html.encode()) < 3_000_000
    assert "Each row holds 4 ranks" in html


def test_many_large_matrices_fit_too(tmp_path):
    html = page(tmp_path, workers=96, count=64)
    assert len(html.encode()) < 3_000_000
