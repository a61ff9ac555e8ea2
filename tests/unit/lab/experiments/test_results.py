"""Results that grow run by run."""

import json

import pytest

from unisono.common.errors import UserError
from unisono.lab.experiments.results import Results


def test_a_run_is_there_when_the_file_is_opened_again(tmp_path):
    path = tmp_path / "runs.json"
    Results(path, ("seed",)).add({"seed": 1, "best": 0.5})
    again = Results(path, ("seed",))
    assert again.has({"seed": 1})
    assert not again.has({"seed": 2})
    assert json.loads(path.read_text()) == [{"seed": 1, "best": 0.5}]


def test_the_same_run_takes_the_place_of_the_first(tmp_path):
    results = Results(tmp_path / "runs.json", ("seed",))
    results.add({"seed": 1, "best": 0.5})
    results.add({"seed": 1, "best": 0.6})
    assert results.runs == [{"seed": 1, "best": 0.6}]


@pytest.mark.parametrize("content", ["banana", '{"a": 1}', "[1]"])
def test_another_file_is_left_alone(content, tmp_path):
    path = tmp_path / "notes.json"
    path.write_text(content)
    with pytest.raises(UserError, match="a file of this experiment"):
        Results(path, ("seed",))
    assert path.read_text() == content


def test_numbers_that_json_cannot_hold_do_not_destroy_what_is_there(tmp_path):
    path = tmp_path / "runs.json"
    results = Results(path, ("seed",))
    results.add({"seed": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.add({"seed": 2, "best": float("nan")})
    assert json.loads(path.read_text()) == [{"seed": 1}]
