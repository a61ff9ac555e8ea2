"""Each injection changes what it says, where and when it says so, and counts it."""

import pytest
import torch

from unisono.lab.faults.catalogue import STATISTICAL
from unisono.lab.faults.injections import INJECTIONS, Injection

VICTIM, START, WORKERS = 2, 5, 4


def made(name):
    return INJECTIONS[name](VICTIM, START)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape):
    return torch.randn(*shape, generator=generator(1))


def changed(name, gradient):
    """The gradient afterwards; the injection must not write into what it was given."""
    injection, before = made(name), gradient.clone()
    after = injection.gradient(gradient, generator())
    assert injection.fired == 1
    assert torch.equal(gradient, before)
    return after


def read(name, inputs, targets):
    injection = made(name)
    after = injection.batch(inputs.clone(), targets.clone(), generator())
    assert injection.fired == 1
    return after


def workers_at(injection, step):
    """Whom it changes at a step: their batch, gradient, speed; everybody's learning rate or initial weights."""
    touched = {*injection.inputs_of(step, WORKERS), *injection.gradients_of(step, WORKERS)}
    touched |= set(injection.slow_at(step, WORKERS))
    return touched | (set(range(WORKERS)) if injection.rate_factor(step) != 1 or injection.gain != 1 else set())


def test_there_is_one_for_every_statistical_fault():
    assert list(INJECTIONS) == sorted(STATISTICAL, key=list(INJECTIONS).index)


@pytest.mark.parametrize("name", [name for name in INJECTIONS if name != "deep-post-ln"])
def test_it_befalls_the_right_workers_from_the_right_step_on(name):
    injection, fault = made(name), STATISTICAL[name]
    expected = {VICTIM} if fault.on == "victim" or fault.harmless else set(range(WORKERS))
    assert workers_at(injection, START) == expected
    assert workers_at(made(name), START - 1) == (set() if fault.late else expected)
    once = name in ("bit-30", "bit-10", "toxic-batch", "momentum-contaminated")
    assert workers_at(made(name), START + 1) == (set() if once else expected)


def test_nothing_and_a_fault_of_the_setting_change_nothing():
    for injection in (Injection(VICTIM, START), made("deep-post-ln")):
        assert workers_at(injection, START) == set()


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("gradient-x1.1", 1.1),
        ("gradient-x1.3", 1.3),
        ("gradient-x2", 2),
        ("gradient-x10", 10),
        ("sign-flip", -1),
        ("zero-gradient", 0),
        ("momentum-contaminated", 1000),
    ],
)
def test_a_gradient_times_a_number(name, factor):
    assert torch.allclose(changed(name, normal(50)), factor * normal(50))


def test_noise_is_as_long_as_the_gradient():
    gradient = normal(1000) + 3
    noise = changed("gradient-noise", gradient) - gradient
    assert float(noise.norm() / gradient.norm()) == pytest.approx(1, rel=1e-3)
    assert abs(float(torch.cosine_similarity(noise, gradient, 0))) < 0.1


@pytest.mark.parametrize(("name", "bit"), [("bit-30", 30), ("bit-10", 10)])
def test_exactly_one_bit_is_flipped(name, bit):
    gradient = normal(1000)
    after = changed(name, gradient)
    flipped = [
        a ^ b for a, b in zip(after.view(torch.int32).tolist(), gradient.view(torch.int32).tolist(), strict=True)
    ]
    assert [word for word in flipped if word] == [1 << bit]


def test_underflow_loses_what_is_small_and_keeps_what_is_not():
    large, small = 1e-3 / made("underflow").scale, 2e-8 / made("underflow").scale
    after = changed("underflow", torch.tensor([small, -small, large, -large]))
    assert after[:2].tolist() == [0, 0]
    assert torch.allclose(after[2:], torch.tensor([large, -large]), rtol=0.01)


@pytest.mark.parametrize(
    ("name", "share"), [("wrong-labels-25", 0.25), ("wrong-labels-50", 0.5), ("wrong-labels-100", 1)]
)
def test_labels_are_wrong_by_share(name, share):
    inputs, labels = normal(4000, 3), torch.arange(4000) % 10
    same, wrong = read(name, inputs, labels)
    assert torch.equal(same, inputs)
    assert float((wrong != labels).float().mean()) == pytest.approx(share, abs=0.03)
    assert set(wrong.tolist()) == set(range(10))


def test_inputs_that_are_not_normalised():
    inputs, labels = normal(8, 3), torch.arange(8)
    large, same = read("scaled-inputs", inputs, labels)
    assert torch.equal(large, 3 * inputs)
    assert torch.equal(same, labels)


def test_words_are_shifted():
    words = torch.tensor([[0, 1, 2], [2, 1, 0]])
    shifted, same = read("scaled-inputs", words, words)
    assert shifted.tolist() == [[1, 2, 0], [0, 2, 1]]
    assert torch.equal(same, words)


def test_half_of_an_easy_shard_is_padding():
    inputs, labels = normal(8, 3), torch.arange(1, 9)
    easy, targets = read("easy-shard", inputs, labels)
    assert not easy[:4].any()
    assert not targets[:4].any()
    assert torch.equal(easy[4:], inputs[4:])
    assert torch.equal(targets[4:], labels[4:])


def test_a_toxic_batch_of_numbers_and_of_words():
    inputs, labels = normal(8, 3), torch.arange(8)
    huge, mixed = read("toxic-batch", inputs, labels)
    assert torch.equal(huge, 30 * inputs)
    assert mixed.tolist() == labels.tolist()[::-1]
    words, targets = read("toxic-batch", torch.arange(6).reshape(2, 3), torch.arange(6).reshape(2, 3))
    assert not words.any()
    assert set(targets.flatten().tolist()) == {5}


@pytest.mark.parametrize("name", ["learning-rate-too-high", "oscillation"])
def test_the_learning_rate_rises_and_is_counted(name):
    injection = made(name)
    before, *later = [injection.rate_factor(step) for step in (START - 1, START, START + 1)]
    assert before == 1
    assert later == [injection.factor, injection.factor]
    assert injection.factor >= 10
    assert injection.fired == 2


def test_a_throttled_worker_is_counted_when_it_is_slow():
    injection = made("throttled")
    assert [list(injection.slow_at(step, WORKERS)) for step in (START - 1, START)] == [[], [VICTIM]]
    assert (injection.fired, injection.slowness) == (1, 1.5)


def test_poor_initial_weights():
    injection = made("poor-initialisation")
    assert (injection.gain, injection.fired) == (1e-4, 1)
