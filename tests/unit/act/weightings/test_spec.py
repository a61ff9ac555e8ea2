"""A weighting as text: what it asks for, what comes of it, and what is refused."""

import subprocess
import sys

import pytest
import torch

from unisono import weightings
from unisono.act.weightings.spec import Asked, asked, checked
from unisono.common.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mean", weightings.Mean()),
        ("agreement", weightings.AgreementFilter()),
        ("agreement:", weightings.AgreementFilter()),
        ("agreement:max_distance=0.95", weightings.AgreementFilter(0.95)),
        ("agreement:max_distance=2,order=sequential", weightings.AgreementFilter(2.0, order="sequential")),
        (
            "agreement:order=sequential,fusion=halving",
            weightings.AgreementFilter(order="sequential", fusion="halving"),
        ),
        ("adaptive", weightings.AdaptiveFilter()),
        ("adaptive:share=0.3", weightings.AdaptiveFilter(0.3)),
        ("agreement:norm_aware=on", weightings.NormAware(weightings.AgreementFilter())),
        ("agreement:norm_aware=off", weightings.AgreementFilter()),
        ("adaptive:preconditioned=on", weightings.Preconditioned(weightings.AdaptiveFilter())),
        ("agreement:window=64", weightings.Windowed(weightings.AgreementFilter(), steps=64)),
        (
            "adaptive:window=8,preconditioned=on,norm_aware=on,share=0.2",
            weightings.Windowed(
                weightings.Preconditioned(weightings.NormAware(weightings.AdaptiveFilter(0.2))), steps=8
            ),
        ),
    ],
)
def test_text_becomes_the_weighting_it_names(text, expected):
    assert asked(text).weighting() == expected
    assert checked(text) == text


def test_how_steering_works_is_part_of_the_text():
    assert asked("mean") == Asked("mean", {}, gram="sketch", scope="model")
    assert asked("agreement:gram=exact,max_distance=1,scope=bucket") == Asked(
        "agreement", {"max_distance": 1.0}, gram="exact", scope="bucket"
    )


def test_the_weighting_that_comes_of_it_decides():
    weighting = asked("agreement:max_distance=0.5").weighting()
    assert weighting(torch.tensor([[1.0, 0.9, -0.9], [0.9, 1.0, -0.8], [-0.9, -0.8, 1.0]])).tolist() == [0.5, 0.5, 0]


@pytest.mark.parametrize(
    ("text", "should", "found"),
    [
        ("", "a weighting should be `agreement`, `adaptive` or `mean`", "Found ``"),
        ("krum", "a weighting should be `agreement`, `adaptive` or `mean`", "Found `krum`"),
        ("Agreement", "a weighting should be", "Found `Agreement`"),
        (
            "agreement:tau=0.9",
            "options of the weighting `agreement` should be `max_distance`, `order`,",
            "Found `tau=0.9`",
        ),
        ("agreement:max_distance", "options of the weighting `agreement` should be", "Found `max_distance`"),
        ("mean:share=0.5", "options of the weighting `mean` should be `norm_aware`,", "Found `share=0.5`"),
        ("agreement:max_distance=2.1", "`max_distance` of a weighting should be a number from 0 to 2", "Found `2.1`"),
        ("agreement:max_distance=nan", "`max_distance` of a weighting should be a number from 0 to 2", "Found `nan`"),
        ("agreement:max_distance=far", "`max_distance` of a weighting should be a number from 0 to 2", "Found `far`"),
        ("agreement:order=first", "`order` of a weighting should be `any` or `sequential`", "Found `first`"),
        ("agreement:fusion=sum", "`fusion` of a weighting should be `mean` or `halving`", "Found `sum`"),
        ("adaptive:share=1", "`share` of a weighting should be a number from 0.01 to 0.99", "Found `1`"),
        ("adaptive:norm_aware=yes", "`norm_aware` of a weighting should be `on` or `off`", "Found `yes`"),
        ("agreement:window=1", "`window` of a weighting should be a whole number of steps from 2 up", "Found `1`"),
        ("agreement:window=2.5", "`window` of a weighting should be a whole number of steps from 2 up", "Found `2.5`"),
        ("agreement:window=-4", "`window` of a weighting should be a whole number of steps from 2 up", "Found `-4`"),
        ("agreement:gram=full", "`gram` of a weighting should be `sketch` or `exact`", "Found `full`"),
        ("agreement:scope=layer", "`scope` of a weighting should be `model` or `bucket`", "Found `layer`"),
        ("agreement:window=8,gram=exact", "`window` and `preconditioned` need sketches", "Found `gram=exact`"),
        ("agreement:preconditioned=on,gram=exact", "`window` and `preconditioned` need sketches", "Found `gram=exact`"),
    ],
)
def test_what_cannot_be_is_refused_with_the_rule_and_what_was_found(text, should, found):
    with pytest.raises(UserError) as refused:
        asked(text)
    message = str(refused.value)
    assert message.startswith(should)
    assert found in message
    assert "\n" not in message


def test_halving_without_its_order_is_refused_with_what_to_add():
    with pytest.raises(UserError, match=r"depends on the order of workers\. Add: order=sequential"):
        asked("agreement:fusion=halving")


def test_an_unknown_weighting_is_told_what_to_write():
    with pytest.raises(UserError, match=r"Write: --weighting agreement:max_distance=0\.95"):
        asked("gaf")


def test_texts_are_checked_without_torch():
    check = "from unisono.act.weightings.spec import asked; asked('agreement:window=8')"
    code = f"import sys; {check}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
