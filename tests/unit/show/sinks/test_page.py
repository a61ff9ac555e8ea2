"""The page about sinks says what is true."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

from unisono.cli.commands.run import parse
from unisono.show.sinks.choosing import SINKS, read
from unisono.show.sinks.delivery import LONGEST_QUEUE, READINGS_A_SECOND
from unisono.show.sinks.names import MANUALS, METRICS

PAGE = (Path(__file__).parents[4] / "docs" / "sinks.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_command_is_understood(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: name)
    lines = [line for kind, block in BLOCKS if kind == "bash" for line in block.splitlines()]
    named = set()
    for line in lines:
        words = shlex.split(line)
        if words[:2] == ["unisono", "run"]:
            named |= {sink.name for sink in read(parse(words[2:]).options["--sink"])}
        else:
            named |= {sink.name for sink in read(words[0].removeprefix("UNISONO_SINKS="))}
    assert named == set(SINKS)


def test_the_python_example_can_be_compiled():
    [example] = [block for kind, block in BLOCKS if kind == "python"]
    compile(example, "docs/sinks.md", "exec")


def test_names_and_limits_are_those_of_the_code():
    for name in (*METRICS, *MANUALS.values()):
        assert name in PAGE
    for name, sink in SINKS.items():
        assert f"| `{name}` |" in PAGE
        assert sink.package == "" or f"unisono[{name}]" in PAGE
        assert [option.name for option in fields(sink) if f"{option.name}=" not in PAGE] == []
    assert f"{READINGS_A_SECOND} readings a second" in PAGE
    assert f"{LONGEST_QUEUE:,} readings" in PAGE
