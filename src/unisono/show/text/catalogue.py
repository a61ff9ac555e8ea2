"""What each code means: for `unisono explain` and for the page of findings."""

from __future__ import annotations

import difflib
import re
import sys
from operator import eq

from unisono.common.errors import UserError
from unisono.common.terminal import lines_of
from unisono.diagnose import manuals
from unisono.diagnose.rules import RULES, Rule
from unisono.show.text.findings_markdown import escaped, with_code, without_markup

WIDTH = 80
HEAD = """\
# Findings

<!-- Made from the rules: python -m unisono.show.text.catalogue > docs/findings.md -->

What `unisono diagnose` can find, what it means, and what to do. `unisono explain CODE` shows the same in a terminal. A
finding names the ranks at fault where the evidence does; with two workers it often cannot tell which of them is. The
severity is the highest that a rule may give."""


def rule_named(name: str) -> type[Rule]:
    """The rule with this code or slug, in capitals or not."""
    wanted = name.strip().lower().replace("_", "-")
    names = {text.lower(): rule for rule in RULES for text in (rule.code, rule.slug)}
    if wanted in names:
        return names[wanted]
    near = difflib.get_close_matches(wanted, names, n=3)
    # Codes are so short that several are equally near; the one with most letters in their place is meant.
    rule = names[max(near, key=lambda one: sum(map(eq, one, wanted)))] if near else None
    hint = f"Did you mean {rule.code} ({rule.slug})?" if rule else "All of them: unisono explain"
    raise UserError(f"a finding is named by its code or slug, like {RULES[0].code}. Found `{name}`. {hint}")


def overview() -> str:
    """A line for each code."""
    lines = [f"{'code':<5}  {'up to':<8}  finding"]
    for rule in RULES:
        start = f"{rule.code:<5}  {rule.severity:<8}  "
        lines += lines_of(rule.title(), WIDTH, start, " " * len(start))
    return "\n".join([*lines, "", "More about one: unisono explain CODE"])


def explanation(rule: type[Rule]) -> str:
    """Everything known about a code, 80 wide."""
    parts = [
        [f"{rule.code}  {rule.title()}", f"       {rule.slug}, up to {rule.severity}"],
        lines_of(rule.meaning, WIDTH),
        ["Causes, and what to do"] + [line for slug in rule.causes for line in _cause(rule, slug)],
        _row("Correction", rule.correction),
        _thresholds(rule),
        [
            *_row("Needs", rule.needs),
            *_row("Explains", ", ".join(rule.explains)),
            *_row("Pattern", rule.pattern or ""),
            *_row("Source", rule.source),
        ],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _thresholds(rule: type[Rule]) -> list[str]:
    told = [line for text in manuals.about(rule.code) for line in lines_of(text, WIDTH, first="  ", rest="    ")]
    return ["Thresholds of the manuals (shown with --thresholds manuals)", *told] if told else []


def findings_page() -> str:
    """docs/findings.md."""
    table = ["| code | finding | up to |", "|---|---|---|"]
    table += [
        f"| [{rule.code}](#{rule.code.lower()}-{rule.slug}) | {escaped(rule.title())} | {rule.severity} |"
        for rule in RULES
    ]
    return "\n\n".join([HEAD, "\n".join(table), *map(_section, RULES)]) + "\n"


def _cause(rule: type[Rule], slug: str) -> list[str]:
    lines = lines_of(f"{slug}: {rule.causes[slug]}", WIDTH, first="  ", rest="    ")
    for remedy in rule.remedies.get(slug, ()):
        lines += lines_of(remedy, WIDTH, first="    > ", rest="      ")
    return lines


def _row(label: str, text: str) -> list[str]:
    return lines_of(text, WIDTH, first=f"{label:<12}", rest=" " * 12)


def _section(rule: type[Rule]) -> str:
    parts = [
        f"## {rule.code} {rule.slug}",
        f"{escaped(rule.title())}; up to {rule.severity}.",
        with_code(rule.meaning),
        "\n".join(line for slug in rule.causes for line in _bullets(rule, slug)),
        f"Correction of the manuals: {with_code(rule.correction)}" if rule.correction else "",
        " ".join(f"Threshold of the manuals for {escaped(text)}" for text in manuals.about(rule.code)),
        "\n".join(f"* {label}: {text}" for label, text in _facts(rule).items() if text),
    ]
    return "\n\n".join(part for part in parts if part)


def _bullets(rule: type[Rule], slug: str) -> list[str]:
    lines = [f"* `{slug}`: {with_code(rule.causes[slug])}"]
    return lines + [f"  * {with_code(remedy)}" for remedy in rule.remedies.get(slug, ())]


def _facts(rule: type[Rule]) -> dict[str, str]:
    return {
        "needs": with_code(rule.needs),
        "explains": ", ".join(rule.explains),
        "pattern": escaped(rule.pattern or ""),
        "source": _linked(rule.source),
    }


def _linked(source: str) -> str:
    """`owner/name#12` becomes a link to the report."""
    report = re.compile(r"\b([\w-]+/[\w.-]+)\\#(\d+)")
    return report.sub(r"[\1\\#\2](https://github.com/\1/issues/\2)", without_markup(source))


if __name__ == "__main__":
    sys.stdout.write(findings_page())
