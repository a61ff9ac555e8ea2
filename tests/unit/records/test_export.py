import csv
import math
import os
import sys

import pytest

from unisono.common.errors import UserError
from unisono.records import RunRecord, StepRecord, ValidationRecord, export, to_line
from unisono.records.export import export_csv, export_parquet
from unisono.records.runfile import read_run

STEPS = [
    StepRecord(1, 0, 1.5, loss_W=(0.5, None), loss_mean=0.5, finite_W=(True, False)),
    StepRecord(1, 1, 1.5, loss_W=(9.0, 9.0)),
    StepRecord(2, 1, 1.5, heard=True, loss_W=(-1.5, math.inf, 0.25), nonfinite_W=(0, 1, 0), cos_WW=((1.0,) * 3,) * 3),
]


@pytest.fixture
def run(tmp_path):
    lines = [to_line(record) for record in (RunRecord(1, "r", 1.5, "", ""), *STEPS)]
    (tmp_path / "run.jsonl").write_text("\n".join(lines))
    return read_run(tmp_path)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_per_step_and_a_column_per_rank(run, tmp_path):
    export_csv(run, tmp_path / "table.csv")
    first, second = rows_of(tmp_path / "table.csv")
    assert (first["step"], first["attempt"], first["heard"]) == ("0", "1", "False")
    assert (second["step"], second["attempt"], second["heard"]) == ("1", "2", "True")
    assert [first[f"loss_{rank}"] for rank in range(3)] == ["0.5", "", ""]
    assert [second[f"loss_{rank}"] for rank in range(3)] == ["-1.5", "inf", "0.25"]
    assert (first["finite_1"], second["finite_1"], second["nonfinite_1"]) == ("False", "", "1")
    assert (first["loss_mean"], second["loss_mean"]) == ("0.5", "")


def test_a_validation_stands_in_the_row_of_its_step(tmp_path):
    validations = ValidationRecord(1, 1, 1.5, 0, 0.25), ValidationRecord(2, 1, 1.5, 0, 0.5)
    lines = [to_line(record) for record in (RunRecord(1, "r", 1.5, "", ""), *STEPS, *validations)]
    (tmp_path / "run.jsonl").write_text("\n".join(lines))
    export_csv(read_run(tmp_path), tmp_path / "table.csv")
    assert [row["validation"] for row in rows_of(tmp_path / "table.csv")] == ["", "0.5"]


def test_csv_leaves_out_what_is_not_a_number(run, tmp_path):
    export_csv(run, tmp_path / "table.csv")
    assert not {"cos_WW", "norm_G", "norm_GW", "cos_GW", "loss_W"} & set(rows_of(tmp_path / "table.csv")[0])


def test_parquet_keeps_types_and_matrices(run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    export_parquet(run, tmp_path / "table.parquet")
    table = parquet.read_table(tmp_path / "table.parquet")
    types = {name: str(table.schema.field(name).type) for name in ("step", "time", "heard", "loss_2", "nonfinite_0")}
    assert types == {"step": "int64", "time": "double", "heard": "bool", "loss_2": "double", "nonfinite_0": "int64"}
    first, second = table.to_pylist()
    assert (first["loss_1"], second["loss_1"], second["attempt"]) == (None, math.inf, 2)
    assert (first["cos_WW"], second["cos_WW"]) == (None, [[1.0] * 3] * 3)
    assert first["norm_G"] is None


def test_a_run_without_steps_gives_a_table_without_rows(tmp_path):
    (tmp_path / "run.jsonl").write_text(to_line(RunRecord(1, "r", 1.5, "", "")))
    export_csv(read_run(tmp_path), tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text().startswith("attempt,step,time,heard")
    assert rows_of(tmp_path / "table.csv") == []


def test_what_steering_decided_is_in_the_table(tmp_path):
    steps = StepRecord(1, 0, 1.5, kept_workers=2), StepRecord(1, 1, 1.5, kept_workers=1, weight_W=(1.0, 0.0))
    lines = [to_line(record) for record in (RunRecord(1, "r", 1.5, "", ""), *steps)]
    (tmp_path / "run.jsonl").write_text("\n".join(lines))
    export_csv(read_run(tmp_path), tmp_path / "table.csv")
    rows = [[row[name] for name in ("kept_workers", "weight_0", "weight_1")] for row in rows_of(tmp_path / "table.csv")]
    assert rows == [["2", "", ""], ["1", "1.0", "0.0"]]


@pytest.mark.parametrize("start", "=+-@\t\r")
def test_texts_cannot_become_formulas(start):
    assert export._cell(f"{start}cmd") == f"'{start}cmd"


@pytest.mark.parametrize("value", [-1.5, -3, "plain", None, True])
def test_other_cells_stay_as_they_are(value):
    assert export._cell(value) is value


def test_without_pyarrow_the_extra_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r'pip install "unisono\[parquet\]"'):
        export_parquet(run, tmp_path / "table.parquet")
    assert not (tmp_path / "table.parquet").exists()


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt(), RuntimeError()])
def test_a_failed_export_leaves_the_old_file_and_nothing_else(run, tmp_path, monkeypatch, failure):
    def fail(_value):
        raise failure

    (tmp_path / "table.csv").write_text("old")
    monkeypatch.setattr(export, "_cell", fail)
    with pytest.raises((UserError, KeyboardInterrupt, RuntimeError)):
        export_csv(run, tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["run.jsonl", "table.csv"]


def test_the_run_itself_is_never_replaced(run, tmp_path):
    (tmp_path / "link.csv").symlink_to("run.jsonl")
    for name in ("run.jsonl", "link.csv"):
        with pytest.raises(UserError, match="should not replace its run"):
            export_csv(run, tmp_path / name)


def test_a_link_is_followed(run, tmp_path):
    (tmp_path / "table.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("table.csv")
    export_csv(run, tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    assert len(rows_of(tmp_path / "table.csv")) == 2
