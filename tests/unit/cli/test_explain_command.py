import pytest

from unisono.cli import main as cli
from unisono.diagnose.rules import RULES
from unisono.diagnose.rules.un101_duplicated_data import DuplicatedData


def explain(capsys, *arguments):
    code = cli.main(["explain", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("name", ["UN101", "un101", "duplicated-data", "Duplicated_Data"])
def test_a_code_or_slug_in_any_case(name, capsys):
    code, out, _ = explain(capsys, name)
    assert code == 0
    assert out.startswith("UN101  Several workers load the same data\n       duplicated-data, up to critical\n")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_everything_about_a_code_is_told_80_wide(rule, capsys):
    _, out, _ = explain(capsys, rule.code)
    words = " ".join(out.split())
    told = [rule.title(), rule.meaning, rule.severity, rule.needs, rule.source, rule.pattern or "", rule.correction]
    told += [text for slug in rule.causes for text in (slug, rule.causes[slug], *rule.remedies.get(slug, ()))]
    assert [text for text in told if " ".join(text.split()) not in words.replace("> ", "")] == []
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [(), ("--all",)])
def test_the_table_of_all_codes(arguments, capsys):
    code, out, _ = explain(capsys, *arguments)
    assert code == 0
    words = " ".join(out.split())
    assert all(f"{rule.code} {rule.severity} {rule.title()}" in words for rule in RULES)
    assert max(map(len, out.splitlines())) <= 80


def test_a_correction_is_told(monkeypatch, capsys):
    monkeypatch.setattr(DuplicatedData, "correction", "the manual is wrong here")
    assert "Correction  the manual is wrong here\n" in explain(capsys, "UN101")[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("UN1O1", "Did you mean UN101 (duplicated-data)?"),
        ("duplicate-data", "Did you mean UN101 (duplicated-data)?"),
        ("banana", "All of them: unisono explain"),
        ("", "All of them: unisono explain"),
        ("UN\n\x1b[31m", "Found `UN "),
    ],
)
def test_an_unknown_code_gives_2_and_the_nearest(name, words, capsys):
    code, out, err = explain(capsys, name)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
