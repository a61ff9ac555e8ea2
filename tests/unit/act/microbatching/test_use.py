"""Virtual workers in a training loop, used well and badly."""

import copy

import pytest
import torch
from torch import nn

import unisono
from unisono.weightings import AdaptiveFilter, AgreementFilter, Mean, Preconditioned, Windowed
from unit.act.microbatching.problems import batches, equal, loss_of, network, run

pytestmark = pytest.mark.usefixtures("route")

SEQUENTIAL = AgreementFilter(2.0, order="sequential")


def states(optimizer):
    return copy.deepcopy([optimizer.state[parameter] for parameter in optimizer.param_groups[0]["params"]])


@pytest.mark.parametrize("order", ["any", "sequential"])
@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.1),
        lambda parameters: torch.optim.AdamW(parameters, 0.1),
    ],
    ids=["sgd", "adamw"],
)
def test_where_nobody_agrees_weights_and_momentum_stay_bit_for_bit(order, make):
    model = network()
    optimizer = make(model.parameters())
    workers = unisono.microbatches(
        model, weighting=AgreementFilter(lambda step: 2.0 if step < 3 else 0.001, order=order)
    )
    for step in range(3):
        assert run(workers, model, batches(3, step)).all()
        optimizer.step()
    weights_before, states_before = copy.deepcopy(model.state_dict()), states(optimizer)
    assert not run(workers, model, batches(3, 9)).any()
    assert all(parameter.grad is None for parameter in model.parameters())
    optimizer.step()
    assert equal(weights_before, model.state_dict())
    assert all(equal(one, other) for one, other in zip(states_before, states(optimizer), strict=True))


def fail_in_a_microbatch(workers, model, micro):
    with workers.microbatch():
        loss_of(model, (9 * micro[0], micro[1])).backward()
        raise ZeroDivisionError


@pytest.mark.parametrize("forget_rejected", [False, True])
@pytest.mark.parametrize("at", [0, 1])
def test_a_micro_batch_that_raises_leaves_no_trace(forget_rejected, at):
    whole, model = network(batch_norm=forget_rejected), network(batch_norm=forget_rejected)
    expected = run(unisono.microbatches(whole, weighting=Mean(), forget_rejected=forget_rejected), whole, batches(2))
    workers = unisono.microbatches(model, weighting=Mean(), forget_rejected=forget_rejected)
    for position, micro in enumerate(batches(2)):
        if position == at:
            with pytest.raises(ZeroDivisionError):
                fail_in_a_microbatch(workers, model, micro)
            assert all(parameter.grad is None for parameter in model.parameters())
        with workers.microbatch():
            loss_of(model, micro).backward()
    assert torch.equal(workers.reduce(), expected)
    assert equal(whole.state_dict(), model.state_dict())
    for one, other in zip(whole.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_with_a_grad_scaler_overflow_lowers_the_scale_and_training_goes_on():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    workers = unisono.microbatches(model, weighting=AgreementFilter(1.5))
    kept = []
    for _ in range(90):
        for micro in batches(4):
            with workers.microbatch():
                scaler.scale(10 * loss_of(model, micro)).backward()
        weights = workers.reduce()
        if weights.any():
            scaler.step(optimizer)
            scaler.update()
        if not all(workers.finite):
            scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
        kept.append(int(weights.count_nonzero()))
    assert kept[0] == 0
    assert kept[-1] > 1
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert scaler.get_scale() < 2.0**127
    assert sum(loss_of(model, micro) for micro in batches(4)) < sum(loss_of(network(), micro) for micro in batches(4))


def test_gradients_from_before_the_step_are_dropped():
    model, fresh = network(), network()
    loss_of(model, batches(1, 7)[0]).backward()
    for one in (model, fresh):
        run(unisono.microbatches(one, weighting=Mean()), one, batches(2))
    assert torch.equal(model[0].weight.grad, fresh[0].weight.grad)


def test_layers_thawed_between_steps_take_part():
    model = network()
    model[0].requires_grad_(False)
    workers = unisono.microbatches(model, weighting=SEQUENTIAL)
    run(workers, model, batches(2))
    assert model[0].weight.grad is None
    model[0].requires_grad_(True)
    run(workers, model, batches(2))
    assert model[0].weight.grad is not None


def test_a_schedule_counts_reduced_steps():
    model = network()
    asked = []
    workers = unisono.microbatches(model, weighting=AgreementFilter(lambda step: asked.append(step) or 1.0))
    for _ in range(3):
        run(workers, model, batches(2))
    assert asked == [0, 1, 2]


def test_misuse_is_told_clearly():
    model = network()
    workers = unisono.microbatches(model, weighting=Mean())
    with pytest.raises(RuntimeError, match="Found none"):
        workers.reduce()
    with pytest.raises(RuntimeError, match="inside another one"), workers.microbatch(), workers.microbatch():
        pass
    with pytest.raises(RuntimeError, match="an open micro-batch"), workers.microbatch():
        workers.reduce()
    with pytest.raises(RuntimeError, match="Found none on any parameter"), workers.microbatch():
        pass
    with pytest.raises(RuntimeError, match="Found none"):
        workers.reduce()
    assert len(run(workers, model, batches(3))) == 3


def test_sparse_gradients_are_refused():
    model = nn.Embedding(5, 2, sparse=True)
    workers = unisono.microbatches(model, weighting=Mean())
    with pytest.raises(RuntimeError, match="sparse=False"), workers.microbatch():
        model(torch.tensor([1, 2])).sum().backward()


@pytest.mark.parametrize("weighting", [Windowed(Mean()), Preconditioned(AgreementFilter())])
def test_weightings_that_need_more_than_one_step_are_refused(weighting):
    with pytest.raises(ValueError, match="Windowed or Preconditioned"):
        unisono.microbatches(network(), weighting=weighting)


def test_a_class_or_a_number_is_no_weighting():
    with pytest.raises(TypeError, match="Found the class Mean"):
        unisono.microbatches(network(), weighting=Mean)
    with pytest.raises(TypeError, match=r"Found 0\.97"):
        unisono.microbatches(network(), weighting=0.97)


def test_too_few_weights_are_refused():
    model = network()
    with pytest.raises(ValueError, match=r"for each of 2 gradients\. Found \[1\.0\]"):
        run(unisono.microbatches(model, weighting=lambda gram_WW: torch.ones(1)), model, batches(2))


def test_a_wrapped_model_is_sent_to_attach(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(network())
        with pytest.raises(ValueError, match=r"Found DistributedDataParallel.*unisono\.attach"):
            unisono.microbatches(wrapped, weighting=Mean())
    finally:
        torch.distributed.destroy_process_group()


def test_the_function_is_not_hidden_by_a_module_of_its_name():
    assert callable(unisono.microbatches)
    assert unisono.weightings.Mean is Mean
    assert {"microbatches", "weightings"} <= set(dir(unisono))


def test_a_weighting_that_remembers_follows_one_model():
    weighting = AdaptiveFilter()
    model = network()
    run(unisono.microbatches(model, weighting=weighting), model, batches(3))
    assert weighting._memory.steps == 0


def test_an_own_function_may_return_a_list_but_no_nan():
    model = network()
    run(unisono.microbatches(model, weighting=lambda gram_WW: [0.25, 0.75]), model, batches(2))
    with pytest.raises(ValueError, match="one finite weight"):
        run(unisono.microbatches(model, weighting=lambda gram_WW: [float("nan"), 1.0]), model, batches(2))


def test_a_step_can_be_begun_again():
    model, again = network(batch_norm=True), network(batch_norm=True)
    workers = unisono.microbatches(model, weighting=Mean(), forget_rejected=True)
    with workers.microbatch():
        loss_of(model, batches(1, seed=9)[0]).backward()
    workers.discard()
    weights = run(workers, model, batches(2))
    assert len(weights) == 2
    run(unisono.microbatches(again, weighting=Mean(), forget_rejected=True), again, batches(2))
    assert equal(model.state_dict(), again.state_dict())
    assert all(
        torch.equal(one.grad, other.grad) for one, other in zip(model.parameters(), again.parameters(), strict=True)
    )
