"""What is told of torch's calls, to whom, and that nothing is left behind."""

import gc

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from group_of_one import group_of_one
from unisono.listen import torch_patches

PLACES = [
    (torch.autograd, "backward"),
    (torch.optim.Optimizer, "zero_grad"),
    (nn.Module, "zero_grad"),
    (torch.amp.GradScaler, "scale"),
    (torch.amp.GradScaler, "step"),
    (torch.nn.utils.clip_grad, "_clip_grads_with_norm_"),
    (DistributedDataParallel, "forward"),
]


class Notes(torch_patches.Listener):
    """Writes down what it is told: the call's name and its arguments."""

    def __init__(self):
        self.told = []
        told = [name for name in dir(torch_patches.Listener) if not name.startswith("_")]
        for name in told:
            setattr(self, name, lambda *args, name=name: self.told.append((name, *args)))

    @property
    def names(self):
        return [name for name, *_ in self.told]

    def of(self, name):
        return [args for told, *args in self.told if told == name]


@pytest.fixture
def notes():
    listener = Notes()
    torch_patches.connect(listener)
    yield listener
    torch_patches.disconnect(listener)
    assert torch_patches._patched.listeners == ()


@pytest.fixture
def model():
    return nn.Linear(2, 1)


def same(these, those):
    return len(these) == len(those) and all(one is other for one, other in zip(these, those, strict=True))


def test_the_last_to_leave_puts_torch_back():
    before = [getattr(owner, name) for owner, name in PLACES]
    first, second = Notes(), Notes()
    torch_patches.connect(first)
    torch_patches.connect(second)
    patched = [getattr(owner, name) for owner, name in PLACES]
    assert not any(one is other for one, other in zip(before, patched, strict=True))
    assert [one.__name__ for one in patched] == [one.__name__ for one in before]
    torch_patches.disconnect(first)
    assert same([getattr(owner, name) for owner, name in PLACES], patched)
    torch_patches.disconnect(second)
    torch_patches.disconnect(second)
    assert same([getattr(owner, name) for owner, name in PLACES], before)
    assert torch_patches._patched.undo == []


def test_a_patch_that_somebody_has_wrapped_stays():
    listener = Notes()
    original = torch.autograd.backward
    torch_patches.connect(listener)
    ours = torch.autograd.backward

    def theirs(*args, **kwargs):
        ours(*args, **kwargs)

    torch.autograd.backward = theirs
    try:
        torch_patches.disconnect(listener)
        assert torch.autograd.backward is theirs
        torch.ones((), requires_grad=True).backward()
        assert listener.told == []
    finally:
        torch.autograd.backward = original


def test_who_leaves_while_another_comes_does_not_put_torch_back(model, monkeypatch):
    gone, listener, install = Notes(), Notes(), torch_patches.dataloader_patches.install

    def collect_garbage(*args):
        """As when an earlier model, whose guard has been released already, is collected just now."""
        torch_patches.disconnect(gone)
        install(*args)

    monkeypatch.setattr(torch_patches.dataloader_patches, "install", collect_garbage)
    torch_patches.connect(listener)
    try:
        model(torch.ones(3, 2)).sum().backward()
    finally:
        torch_patches.disconnect(listener)
    assert listener.names == ["backward_begins", "backward_ended"]


def test_a_step_is_told_in_order(notes, model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = model(torch.ones(3, 2)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    assert notes.names == [
        "backward_begins",
        "backward_ended",
        "optimizer_begins",
        "optimizer_stepped",
        "gradients_zeroed",
    ]
    assert notes.of("backward_begins")[0][0] is loss
    assert notes.of("backward_ended") == [[False]]
    for name in ("optimizer_begins", "optimizer_stepped"):
        ((parameters, told),) = notes.of(name)
        assert told is optimizer
        assert same(parameters, list(model.parameters()))


def test_gradients_are_gone_when_it_is_told(model):
    class Looks(torch_patches.Listener):
        seen = None

        def gradients_zeroed(self, parameters):
            self.seen = [parameter.grad for parameter in parameters]

    looks = Looks()
    torch_patches.connect(looks)
    try:
        model(torch.ones(3, 2)).sum().backward()
        model.zero_grad()
    finally:
        torch_patches.disconnect(looks)
    assert looks.seen == [None, None]


def test_only_the_outermost_backward_is_told(notes, model):
    checkpoint(model, torch.ones(3, 2, requires_grad=True), use_reentrant=True).sum().backward()
    assert notes.names == ["backward_begins", "backward_ended"]


def test_a_backward_that_raises_is_told_and_raises(notes, model):
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar"):
        model(torch.ones(3, 2)).backward()
    assert notes.of("backward_ended") == [[True]]
    model(torch.ones(3, 2)).sum().backward()
    assert notes.of("backward_ended") == [[True], [False]]
    assert torch_patches._patched.depth == 0


def test_arguments_of_backward_pass_through(notes, model):
    outputs, weights = model(torch.ones(3, 2)), torch.tensor([[1.0], [2.0], [3.0]])
    outputs.backward(weights, retain_graph=True, inputs=[model.bias])
    torch.autograd.backward(outputs, weights, inputs=[model.bias])
    assert model.weight.grad is None
    assert model.bias.grad.item() == 12
    ((_, given), (_, given_again)) = notes.of("backward_begins")
    assert weights is given_again
    assert given is weights or given[0] is weights


def test_a_scaler_is_told_of_with_its_losses(notes, model):
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    losses = [model(torch.ones(1, 2)).sum(), model(torch.zeros(1, 2)).sum()]
    scaled = scaler.scale(losses)
    assert [one.item() for one in scaled] == pytest.approx([8 * one.item() for one in losses])
    ((told_scaled, told_scaler, told_losses),) = notes.of("loss_scaled")
    assert same([told_scaled, told_scaler, told_losses], [scaled, scaler, losses])
    sum(scaled).backward()
    notes.told.clear()
    scaler.step(optimizer)
    assert notes.names == ["optimizer_begins", "optimizer_stepped", "scaler_stepped"]


def test_a_scaler_that_is_turned_off_scales_nothing_and_steps_anything(notes, model):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    loss = model(torch.ones(1, 2)).sum()
    assert scaler.scale(loss) is loss

    class Stepper:
        def step(self):
            return "stepped"

    stepper = Stepper()
    assert scaler.step(stepper) == "stepped"
    assert notes.told == [("scaler_stepped", [], stepper)]


def test_the_result_of_a_scalers_step_comes_back(notes, model):
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", enabled=False)
    assert scaler.step(optimizer, lambda: 7.0) == 7.0


@pytest.mark.parametrize("given", ["generator", "list", "one"])
def test_clipping_is_told_before_it_is_done(notes, model, given):
    model(torch.ones(3, 2)).sum().backward()
    kinds = {"generator": model.parameters(), "list": list(model.parameters()), "one": model.weight}
    expected = [model.weight] if given == "one" else list(model.parameters())
    norm = nn.utils.clip_grad_norm_(kinds[given], 1e-2)
    ((parameters, told),) = notes.of("clipped")
    assert same(parameters, expected)
    assert told.item() == norm.item()
    assert sum(float(one.grad.square().sum()) for one in expected) ** 0.5 == pytest.approx(1e-2, rel=1e-3)


def test_a_generator_of_parameters_is_not_used_up(notes, model):
    model(torch.ones(3, 2)).sum().backward()
    torch.nn.utils.clip_grad._clip_grads_with_norm_(model.parameters(), 1e-2, torch.tensor(1.0))
    ((parameters, _),) = notes.of("clipped")
    assert same(parameters, list(model.parameters()))
    assert model.bias.grad.item() == pytest.approx(3e-2, rel=1e-3)


def test_forward_of_a_wrapped_model_is_told_with_its_inputs(notes):
    with group_of_one():
        wrapped = DistributedDataParallel(nn.Linear(2, 1))
        inputs = torch.ones(3, 2)
        output = wrapped(inputs)
        assert torch.equal(output, wrapped.module(inputs))
        begins, ended = notes.of("forward_begins")[0], notes.of("forward_ended")[0]
        assert begins[0] is wrapped
        assert same(begins[1][0], (inputs,))
        assert ended[0] is wrapped
        notes.told.clear()
        del wrapped, begins, ended, output
        gc.collect()


def test_a_loaders_batches_are_told_with_their_places(notes):
    batches = list(DataLoader(list(range(5)), batch_size=2))
    assert notes.names == ["loading_begins", "loaded"] * 3
    assert [indices for _, _, indices in notes.of("loaded")] == [[0, 1], [2, 3], [4]]
    assert same([data for _, data, _ in notes.of("loaded")], batches)


def test_listeners_are_told_in_the_order_they_came(notes, model):
    order = []

    class Second(torch_patches.Listener):
        def optimizer_begins(self, parameters, optimizer):
            order.append(len(notes.of("optimizer_begins")))

    second = Second()
    torch_patches.connect(second)
    try:
        torch.optim.SGD(model.parameters(), 0.1).step()
    finally:
        torch_patches.disconnect(second)
    assert order == [1]
