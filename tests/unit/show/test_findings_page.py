"""The page of findings is what the rules say."""

import re
from pathlib import Path

from unisono.diagnose.rules import RULES
from unisono.show.text.catalogue import findings_page

PAGE = Path(__file__).parents[3] / "docs" / "findings.md"


def test_the_page_is_made_from_the_rules():
    assert PAGE.read_text() == findings_page(), "make it anew: python -m unisono.show.text.catalogue > docs/findings.md"


def test_every_rule_has_its_section_and_a_link_to_it():
    page = findings_page()
    for rule in RULES:
        assert f"\n## {rule.code} {rule.slug}\n" in page
        assert f"](#{rule.code.lower()}-{rule.slug})" in page
        assert all(f"* `{slug}`: " in page for slug in rule.causes)


def test_public_reports_are_links():
    for owner, number in re.findall(r"\b([\w-]+/[\w.-]+)#(\d+)", " ".join(rule.source for rule in RULES)):
        assert f"(https://github.com/{owner}/issues/{number})" in findings_page()
