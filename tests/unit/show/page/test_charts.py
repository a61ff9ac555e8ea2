"""What the charts are given to draw: the right numbers, in the right places, under the right names."""

from dataclasses import replace

import numpy as np
import pytest

import invented_runs as invented

pytest.importorskip("bokeh")

from bokeh.models import Range1d

from unisono.show.page.chart_list import ALL
from unisono.show.page.charts.chart import colours, image_columns, limit_of
from unisono.show.page.charts.findings_lane import FindingsLane
from unisono.show.page.charts.outlook_chart import OutlookChart
from unisono.show.page.charts.overlay import Overlay
from unisono.show.page.charts.snapshot_maps import chosen, layer_names
from unisono.show.page.drawing import Drawing
from unisono.show.page.lines import Line
from unisono.show.page.page_model import PageModel

CHARTS = {chart.name: chart for chart in ALL}


def told(*records):
    page_model = PageModel()
    for record in records:
        page_model.see(record)
    return page_model


def opposed(ranks=None, first=100, count=300, rank=2):
    """One of four workers has had the wrong sign from a step on."""
    right, wrong = invented.steps(4, first), invented.steps(4, count - first, first=first, opposed=rank, seed=1)
    return told(invented.header(), invented.attempt(4, ranks=ranks), *right, *wrong)


def test_the_outline_is_around_the_row_of_the_rank_that_is_named():
    page_model = opposed()
    [finding] = [one for one in page_model.checkup().findings if one.code == "UN501"]
    marks = CHARTS["map-cos"].data(page_model)["map-cos-marks"]
    assert finding.ranks == (2,)
    assert (marks["top"], marks["bottom"]) == ([2.5], [1.5])
    assert (marks["left"], marks["right"]) == ([finding.first_step - 0.5], [299.5])


def test_ranks_of_a_sub_group_have_the_rows_of_their_places():
    page_model = opposed(ranks=(1, 5, 9, 13))
    assert page_model.checkup().findings[0].ranks == (9,)
    assert CHARTS["map-cos"].data(page_model)["map-cos-marks"]["top"] == [2.5]


def test_an_open_finding_from_before_a_restart_does_not_end_before_it_began():
    page_model = opposed()
    for record in (invented.attempt(4, 2, 10), *invented.steps(4, 5, first=10, number=2)):
        page_model.see(record)
    lane = FindingsLane().data(page_model)["lane"]
    assert all(left < right for left, right in zip(lane["left"], lane["right"], strict=True))


def test_the_lane_holds_each_finding_from_its_first_step_to_the_newest():
    page_model = opposed()
    findings, lane = page_model.checkup().findings, FindingsLane().data(page_model)["lane"]
    assert lane["code"] == [finding.code for finding in findings]
    assert lane["left"] == [finding.first_step - 0.5 for finding in findings]
    assert set(lane["right"]) == {299.5}


def test_what_was_expected_is_drawn_beside_what_was_measured():
    page_model = opposed()
    data = CHARTS["cos"].data(page_model)
    assert set(data["cos"]["mean"]) == {0.15}
    assert set(data["cos-expected"]["mean"]) == {0.16}


def test_steps_needed_and_efficiency_are_those_of_the_outlook():
    page_model = opposed()
    outlook, columns = page_model.outlook(), OutlookChart().data(page_model)["outlook"]
    assert (columns["x"][0], columns["x"][-1]) == (4, 32)
    for name, estimate in (("steps", outlook.steps(32)), ("efficiency", outlook.efficiency(32))):
        assert columns[name][-1] == pytest.approx(estimate.value)
        assert columns[f"{name}_low"][-1] == pytest.approx(estimate.low)
        assert columns[f"{name}_high"][-1] == pytest.approx(estimate.high)


def test_the_map_holds_the_workers_values_in_their_rows():
    image = CHARTS["map-window"].data(opposed())["map-window"]["image"][0]
    assert image.shape[0] == 4
    assert image[:, -1].argmin() == 2
    assert image[2, -1] == pytest.approx(-0.7, abs=0.1)
    assert image[0, -1] == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize("less_is_orange", [True, False])
def test_no_colour_is_kept_for_what_lies_beyond_the_limit(less_is_orange):
    """Or finite values would have it, too: float32 of a limit can be larger than the limit."""
    mapper = colours(0.1, less_is_orange)
    assert (mapper.low, mapper.high) == (-0.1, 0.1)
    assert (mapper.low_color, mapper.high_color) == (None, None)


def test_what_is_infinite_is_black_and_what_is_not_known_is_grey_and_large_numbers_are_neither():
    columns = image_columns([np.array([[np.inf, np.nan, 1e30, -0.5]])])
    assert columns["broken"][0].tolist() == [[1, 0, 0, 0]]
    assert np.isnan(columns["image"][0]).tolist() == [[True, True, False, False]]
    assert "broken" not in image_columns([np.array([[1.0, np.nan]])])


def test_one_extreme_value_does_not_pale_all_others():
    values = np.full(1_000, 0.15)
    values[7] = 1e9
    assert limit_of(values, np.inf) == 0.2
    assert limit_of(np.full(10, 5.0), largest=1.0) == 1.0


def test_losses_of_any_size_can_be_drawn():
    large = [replace(one, loss_W=tuple(1e5 + 3e3 * rank for rank in range(4))) for one in invented.steps(4, 30)]
    Drawing(told(invented.header(), invented.attempt(4), *large))


def test_a_run_without_losses_or_readings_at_first_can_be_drawn():
    bare = [
        replace(one, loss_W=(), loss_mean=None, loss_std=None) for one in invented.steps(4, 30, first=1001, every=10)
    ]
    Drawing(told(invented.header(), invented.attempt(4, first_step=1001), *bare))
    silent = replace(bare[0], step_W=(), compute_W=(), finite_W=())
    Drawing(told(invented.header(), silent))


def test_more_answers_than_workers_are_no_trouble():
    odd = replace(next(invented.steps(4, 1)), finite_W=(False,) * 6)
    Drawing(told(invented.header(), invented.attempt(4), odd))


def test_layers_stand_in_the_models_order():
    page_model = opposed()
    assert layer_names(page_model) == list(invented.GROUPS)
    assert CHARTS["layers-cos"].table(page_model).rows[0][0] == invented.GROUPS[0]


def test_the_norm_of_a_layer_stands_beside_the_median_of_the_workers():
    norm_GW = ((1.0, 1.0, 2.0, 4.0),) * len(invented.GROUPS)
    steps = [replace(one, norm_GW=norm_GW) for one in invented.steps(4, 30)]
    image = CHARTS["layers-norm"].data(told(invented.header(), invented.attempt(4), *steps))["layers-norm"]["image"][0]
    assert image[0].tolist() == pytest.approx([-0.585, -0.585, 0.415, 1.415], abs=1e-3)


def test_the_reading_shown_first_is_that_of_the_leading_finding():
    page_model = opposed()
    snapshots = page_model.snapshots.all()
    first_step = page_model.checkup().findings[0].first_step
    assert first_step <= snapshots[chosen(page_model)].step < first_step + 16
    healthy = told(invented.header(), invented.attempt(4), *invented.steps(4, 60))
    assert chosen(healthy) == len(healthy.snapshots.all()) - 1


def line(*values):
    value_T = np.array(values, dtype=float)
    return Line(np.arange(len(values)), value_T, value_T, value_T, 0)


def test_the_first_run_is_dashed_and_the_second_is_not():
    overlay = Overlay("loss", "Loss", first=line(1, 2), second=line(3, 4))
    figure = overlay.draw(Range1d(0, 1))
    drawn = {tuple(one.data_source.data["mean"]): one.glyph.line_dash for one in figure.renderers}
    assert drawn[(1.0, 2.0)] != []
    assert drawn[(3.0, 4.0)] == []
    assert overlay.caption() == "First run: from 1 to 2. Second run: from 3 to 4."
    assert overlay.table().rows[0] == ["at first", "1", "3"]


def guarded(*acts):
    return told(invented.header(), invented.attempt(4), *invented.steps(4, 100), *acts)


def test_acts_of_the_guard_are_marked_at_their_steps():
    page_model = guarded(
        invented.decision(20),
        invented.decision(60, "reset-momentum, skip", "x" * 1_000, dry=True),
        invented.decision(80, "levitate"),
    )
    columns = CHARTS["actions"].data(page_model)["actions"]
    assert columns["step"] == [20, 60, 60, 80]
    assert columns["row"] == ["skip", "reset", "skip", "other"]
    assert columns["fill"] == [1.0, 0.0, 0.0, 1.0]
    assert columns["what"][1] == "would have reset the momentum and skipped on all workers"
    assert len(columns["why"][1]) == 160
    assert CHARTS["actions"].look(page_model) == ("skip", "reset", "other")
    assert CHARTS["loss"].data(page_model)["acts"] == {"step": [20, 80]}
    assert "Hollow" in CHARTS["actions"].caption(page_model)
    assert "Dotted upright lines: the guard acted." in CHARTS["loss"].caption(page_model)


def test_steps_that_were_rolled_back_are_shaded():
    page_model = guarded(
        invented.decision(80, "roll-back, skip", to_step=50), invented.decision(90, "roll-back", to_step=60, dry=True)
    )
    undone = CHARTS["norm"].data(page_model)["undone"]
    assert (undone["left"], undone["right"], undone["row"]) == ([50.5], [80.5], ["roll-back"])
    assert "Shaded: steps that were rolled back." in CHARTS["norm"].caption(page_model)


def test_a_run_without_a_guard_has_no_marks():
    page_model = guarded()
    assert not CHARTS["actions"].is_there(page_model)
    assert CHARTS["loss"].data(page_model)["acts"] == {"step": []}
    assert "guard" not in CHARTS["loss"].caption(page_model)


def test_acts_at_steps_that_were_trained_again_are_listed_but_not_marked():
    again = invented.attempt(4, number=2, first_step=50), *invented.steps(4, 50, first=50, number=2)
    page_model = guarded(invented.decision(20), invented.decision(60), *again, invented.decision(55, attempt=2))
    assert [act.step for act in page_model.acts] == [20, 55]
    assert [act.step for act in page_model.decision_counts.newest] == [20, 60, 55]
