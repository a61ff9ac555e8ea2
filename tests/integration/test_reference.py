"""What unisono measures in real processes against a reference computed from the full gradients in one."""

import math
from pathlib import Path

import pytest
import torch

from launch import launch, torchrun
from unisono.records.runfile import read_run

JOB = Path(__file__).parent.parent / "jobs" / "reference.py"
SHAPES = [
    "plain",
    "small-buckets",
    "bucket-view",
    "static-graph",
    "awkward",
    "sparse",
    "channels-last",
    "bfloat16",
    "double",
    "accumulated",
    "accumulated-synced",
    "scaled",
    "clipped",
]
COMPILED = ["compiled-inside", "compiled-outside"]
WORKERS = 4
EXACT = 1e-5


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("reference"), *SHAPES, "join")


def trained(folder, *names):
    outcome = launch(torchrun(WORKERS, JOB, *names), env={"RESULTS": folder}, timeout=400)
    assert outcome.returncode == 0, outcome
    assert b"failed" not in outcome.stderr, outcome
    return folder


def truth(folder, name):
    """Per step: losses, and the workers' gradients as rows of a matrix in float64."""
    ranks = [torch.load(folder / f"{name}.{rank}.pt", weights_only=True) for rank in range(WORKERS)]
    for steps in zip(*ranks, strict=True):
        names = sorted(set().union(*(step["local"] for step in steps)))
        sizes = {key: next(s["local"][key] for s in steps if key in s["local"]).numel() for key in names}
        rows = [
            torch.cat([step["local"].get(key, torch.zeros(sizes[key])).flatten().double() for key in names])
            for step in steps
        ]
        yield torch.tensor([step["loss"] for step in steps], dtype=torch.float64), torch.stack(rows), steps


@pytest.mark.parametrize("name", SHAPES)
def test_measures_agree_with_full_gradients(results, name):
    assert_agrees(results, name)


@pytest.mark.slow
def test_measures_of_compiled_models_agree_with_full_gradients(tmp_path):
    trained(tmp_path, *COMPILED)
    for name in COMPILED:
        assert_agrees(tmp_path, name)


def assert_agrees(results, name):
    run = read_run(results / name)
    records = run.timeline()
    assert len(records) == 6
    length = run.attempts[0].sketch_length
    heard = 0
    for record, (loss_W, gradient_WN, _) in zip(records, truth(results, name), strict=True):
        assert_close(record.loss_W, loss_W)
        assert_close(record.loss_std, loss_W.std(correction=0))
        assert_close(record.loss_range, loss_W.max() - loss_W.min())
        if not record.heard:
            continue
        heard += 1
        # All-reduce of bfloat16 rounds the mean it leaves.
        assert_exact_quantities(record, gradient_WN, mean_tolerance=1e-3 if name == "bfloat16" else EXACT)
        assert_directions(record, gradient_WN, length)
    # Where every micro-batch is synchronised, the mean that is left is not the mean of what was heard.
    assert all((record.cos_weighted is None) == (name == "accumulated-synced") for record in records if record.heard)
    # The first reading of a model whose parameters arrive twice only learns that they do.
    assert heard >= (5 if name == "static-graph" else 6)


def assert_exact_quantities(record, gradient_WN, mean_tolerance):
    norm_W = gradient_WN.norm(dim=1)
    assert_close(record.norm_W, norm_W)
    assert_close(record.grad_norm_std, norm_W.std(correction=0))
    assert_close(record.grad_norm_cv, norm_W.std(correction=0) / norm_W.mean())
    if record.cos_weighted is not None:
        assert_close(record.grad_norm, gradient_WN.mean(0).norm(), mean_tolerance)
        assert_close(record.cos_weighted, weighted_cosine(gradient_WN), mean_tolerance)


def assert_directions(record, gradient_WN, length):
    allowed = 5 / math.sqrt(length)
    cos_WW = torch.nn.functional.cosine_similarity(gradient_WN[:, None], gradient_WN[None], dim=2)
    pairs = cos_WW[~torch.eye(len(cos_WW), dtype=torch.bool)]
    others_WN = gradient_WN.sum(0) - gradient_WN
    cos_W = torch.nn.functional.cosine_similarity(gradient_WN, others_WN, dim=1)
    assert_close(record.cos_mean, pairs.mean(), allowed)
    assert_close(record.cos_min, pairs.min(), allowed)
    assert_close(record.cos_W, cos_W, allowed)
    assert_close([cosine for row in record.cos_WW for cosine in row], cos_WW.flatten(), allowed)


def weighted_cosine(gradient_WN):
    gram_WW = gradient_WN @ gradient_WN.T
    norm_W = gradient_WN.norm(dim=1)
    apart = ~torch.eye(len(norm_W), dtype=torch.bool)
    return gram_WW[apart].sum() / (norm_W[:, None] * norm_W)[apart].sum()


def assert_close(found, expected, tolerance=EXACT):
    found = torch.as_tensor(found, dtype=torch.float64)
    torch.testing.assert_close(found, expected.double(), rtol=tolerance, atol=tolerance)


def test_noise_scale_comes_from_the_mean_share_of_signal(results):
    shares = []
    for record, (_, gradient_WN, _) in zip(
        read_run(results / "plain").timeline(), truth(results, "plain"), strict=True
    ):
        square, mean_square = gradient_WN.square().sum(1).mean(), gradient_WN.mean(0).square().sum()
        signal = (WORKERS * mean_square - square) / (WORKERS - 1)
        noise = (square - mean_square) / (1 - 1 / WORKERS)
        shares.append(signal / (signal + noise))
        common = torch.stack(shares).mean()
        if common > 0:
            assert_close(record.cos_expected, common)
            assert record.noise_scale == pytest.approx(float((1 - common) / common), rel=1e-3)
            assert_close(record.effective_workers, 1 / (common + (1 - common) / WORKERS))


def test_clipping_is_noted(results):
    for record, (_, _, steps) in zip(read_run(results / "clipped").timeline(), truth(results, "clipped"), strict=True):
        assert record.clip_norm == pytest.approx(steps[0]["clip"], rel=1e-6)


def test_joined_ranks_are_absent(results):
    run = read_run(results / "join")
    records = run.timeline()
    assert [record.step for record in records] == list(range(6))
    assert all(None not in record.loss_W for record in records[:3])
    assert all(record.loss_W[0] is None and None not in record.loss_W[1:] for record in records[3:])
