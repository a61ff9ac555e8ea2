"""Which charts the page has, section by section."""

from __future__ import annotations

from unisono.show.page.charts.actions_lane import ActionsLane
from unisono.show.page.charts.chart import Chart
from unisono.show.page.charts.findings_lane import FindingsLane
from unisono.show.page.charts.line_chart import LineChart
from unisono.show.page.charts.outlook_chart import OutlookChart
from unisono.show.page.charts.rank_map import RankMapChart
from unisono.show.page.charts.snapshot_maps import SnapshotMap
from unisono.show.page.rankmaps import norms_beside_median

BAND = "Line: mean. Band: the smallest and the largest worker."
EXTREMES = "Line: mean over a stretch of steps. Band: the smallest and the largest value in it."

TIME_LINES: tuple[Chart, ...] = (
    FindingsLane(),
    ActionsLane(),
    LineChart("loss", "Loss", f"{BAND}"),
    LineChart(
        "validation",
        "Validation",
        f"What the script recorded as validation: more is better. {EXTREMES}",
        may_be_logarithmic=False,
    ),
    LineChart("loss_std", "Loss dispersion", f"How far the workers' losses lie apart (standard deviation). {EXTREMES}"),
    LineChart(
        "norm",
        "Gradient norm",
        "Line: norm of the mean gradient, which is shorter than the workers' own where they disagree. Band: the "
        "smallest and the largest worker's.",
        line_is="of the mean",
    ),
    LineChart(
        "norm_cv", "Norm dispersion", f"How far the workers' norms lie apart, relative to their mean. {EXTREMES}"
    ),
    LineChart(
        "cos",
        "Direction consistency",
        "Solid line: mean cosine between pairs of workers. Dashed: what the noise scale predicts. Band: each worker "
        "against all others.",
        expected="cos_expected",
        line_is="mean of pairs",
        may_be_logarithmic=False,
    ),
    LineChart(
        "kept_workers",
        "Workers kept",
        f"How many workers' gradients steering let into the update; none at a skipped step. {EXTREMES}",
        may_be_logarithmic=False,
        until=lambda page_model: page_model.timeline.workers,
    ),
    LineChart("seconds", "Time per step", f"In seconds. {BAND}", unit=" s"),
)

RANK_MAPS: tuple[Chart, ...] = (
    RankMapChart(
        "map-window",
        "Where each worker pulls in the long run",
        "cosine",
        "Directions summed over up to 32 readings, each worker against the others: noise averages out, and a worker "
        "that pulls elsewhere becomes a row of its own colour.",
        ends=("-{0:g}: against the others", "+{0:g}: with them"),
        less_is_orange=True,
        largest=1.0,
    ),
    RankMapChart(
        "map-cos",
        "Direction of each worker against the others",
        "cosine",
        "Cosine between each worker's gradient and the sum of the others', reading by reading.",
        ends=("-{0:g}: against the others", "+{0:g}: with them"),
        less_is_orange=True,
        largest=1.0,
    ),
    RankMapChart(
        "map-norm",
        "Gradient norm of each worker",
        "doublings",
        "Blue: shorter than the workers' median, orange: longer. Counted in doublings: 1 is twice as long, -1 half as "
        "long.",
        ends=("-{0:g} doublings: shorter", "+{0:g} doublings: longer"),
    ),
    RankMapChart(
        "map-loss",
        "Loss of each worker",
        "minus the median",
        "Each worker's loss minus the workers' median at the same step.",
        ends=("-{0:g} below", "+{0:g} above"),
    ),
)

PAIRS: tuple[Chart, ...] = (
    SnapshotMap(
        "matrix",
        "Pairs of workers",
        "Cosine between the gradients of each pair. Workers with the same data make dark blue squares.",
        "cosine",
        ends=("-{0:g}: opposite", "+{0:g}: the same direction"),
        rows=lambda snapshot: snapshot.cos_WW,
        least=1.0,
        largest=1.0,
    ),
)

LAYERS: tuple[Chart, ...] = (
    SnapshotMap(
        "layers-cos",
        "Direction, layer by layer",
        "Cosine between each worker's gradient and the sum of the others', within each group of layers.",
        "cosine",
        ends=("-{0:g}: against the others", "+{0:g}: with them"),
        rows=lambda snapshot: snapshot.cos_GW,
        largest=1.0,
        by_layer=True,
    ),
    SnapshotMap(
        "layers-norm",
        "Norm, layer by layer",
        "Norm of each group of layers: blue is shorter than the workers' median, orange longer. Counted in doublings.",
        "doublings",
        ends=("-{0:g} doublings: shorter", "+{0:g} doublings: longer"),
        rows=lambda snapshot: snapshot.norm_GW,
        measure="Norms",
        prepared=norms_beside_median,
        less_is_orange=False,
        by_layer=True,
    ),
)

NOISE: tuple[Chart, ...] = (
    LineChart("noise_scale", "Noise scale", f"In batches of one worker. {EXTREMES}"),
    LineChart(
        "effective_workers",
        "Effective workers",
        f"How many independent workers these are worth. {EXTREMES}",
        may_be_logarithmic=False,
        until=lambda page_model: page_model.timeline.workers,
    ),
    OutlookChart(),
)

ALL = (*TIME_LINES, *RANK_MAPS, *PAIRS, *LAYERS, *NOISE)
