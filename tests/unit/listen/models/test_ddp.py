"""What the DDP wrapper promises, and what it says of itself; in a group of one."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel

from unisono.listen.models import ddp as listened
from unisono.listen.models.ddp import DDPWrapper

pytestmark = pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated")


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()


def module():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


@pytest.fixture
def ddp():
    return DistributedDataParallel(module())


def test_facts_are_texts(ddp):
    assert DDPWrapper(ddp).facts() == {
        "wrapper": "DistributedDataParallel",
        "broadcast buffers": "yes",
        "buffers": "3",
        "comm hook": "none",
        "wrapped by": "script",
        "equal weights": "promised",
    }


def test_a_hook_is_named():
    ddp = DistributedDataParallel(module())
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    wrapper = DDPWrapper(ddp)
    assert wrapper.facts()["comm hook"] == "fp16_compress_hook"
    assert wrapper.promises_equality()
    assert not wrapper.plain_mean()


def test_local_sgd_promises_nothing():
    ddp = DistributedDataParallel(module())
    wrapper = DDPWrapper(ddp)
    assert wrapper.promises_equality()
    ddp.register_comm_hook(PostLocalSGDState(None, None, start_localSGD_iter=5), post_localSGD_hook)
    assert not wrapper.promises_equality()


def test_buffers_are_shared_unless_ddp_is_told_otherwise(ddp):
    assert DDPWrapper(ddp).unshared_buffers() == []
    apart = DistributedDataParallel(module(), broadcast_buffers=False)
    buffers = DDPWrapper(apart).unshared_buffers()
    assert [buffer.shape for buffer in buffers] == [(4,), (4,)]
    assert DDPWrapper(apart).facts()["broadcast buffers"] == "no"


def test_ignored_buffers_and_parameters_are_left_out():
    inner = module()
    names = ["0.weight", "1.running_mean"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, names)
    apart = DistributedDataParallel(inner, broadcast_buffers=False)
    wrapper = DDPWrapper(apart)
    assert len(wrapper.unshared_buffers()) == 1
    assert "0.weight" not in dict(wrapper.named_parameters())
    assert "0.bias" in dict(wrapper.named_parameters())


def test_whose_forward_it_is(ddp):
    wrapper = DDPWrapper(ddp)
    assert wrapper.is_model(ddp)
    assert not wrapper.is_model(ddp.module)
    assert not wrapper.is_model(None)


def test_a_wrapper_that_is_gone_still_answers():
    inner = module()
    wrapper = DDPWrapper(DistributedDataParallel(inner))
    gc.collect()
    assert wrapper.is_gone()
    assert wrapper.facts()["wrapper"] == "gone"
    assert (wrapper.will_sync(), wrapper.plain_mean(), wrapper.promises_equality()) == (False, True, True)
    assert wrapper.unshared_buffers() == []
    assert not wrapper.is_model(torch.nn.Identity())


def test_the_model_is_free_to_go(ddp):
    wrapper = DDPWrapper(ddp)
    assert not wrapper.is_gone()
    assert wrapper.will_sync()
    with ddp.no_sync():
        ddp(torch.ones(2, 3))
        assert not wrapper.will_sync()


def test_a_forward_without_gradients_does_not_change_what_becomes_of_the_one_before(ddp):
    wrapper = DDPWrapper(ddp)
    ddp(torch.ones(4, 3))
    wrapper.forward_passed()
    with torch.no_grad():
        ddp(torch.ones(4, 3))
        wrapper.forward_passed()
    assert not ddp.require_forward_param_sync, "DDP's own flag has changed"
    assert wrapper.will_sync()
    with ddp.no_sync():
        ddp(torch.ones(4, 3))
        wrapper.forward_passed()
        assert not wrapper.will_sync()


def test_after_a_join_nothing_is_promised_any_more(ddp):
    wrapper = DDPWrapper(ddp)
    assert wrapper.promises_equality()
    ddp._join_config = ddp._join_config._replace(enable=True)
    assert wrapper.joins()
    ddp._join_config = ddp._join_config._replace(enable=False)
    assert wrapper.joins()
    assert wrapper.facts()["data"] == "uneven, inside Join"
    assert not wrapper.promises_equality()


@pytest.fixture
def overwriting():
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(False)


def unchanged(ddp):
    ddp.to("cpu").float().requires_grad_(True)


def cast_there_and_back(ddp):
    ddp.double().float()


def assign(ddp):
    ddp.module[0].weight = nn.Parameter(torch.randn(4, 3))


@pytest.mark.parametrize(("change", "replaced"), [(unchanged, False), (cast_there_and_back, True), (assign, True)])
def test_parameters_are_replaced(ddp, change, replaced):
    wrapper = DDPWrapper(ddp)
    ddp(torch.randn(2, 3)).sum().backward()
    assert wrapper.replaced() is False
    change(ddp)
    ddp(torch.randn(2, 3)).sum().backward()
    assert wrapper.replaced() is replaced
    assert ("replaced" in wrapper.facts()) is replaced


def test_parameters_that_take_the_place_of_others_are_known(ddp, overwriting):
    wrapper, before = DDPWrapper(ddp), list(ddp.parameters())
    cast_there_and_back(ddp)
    assert wrapper.replaced() is True
    assert wrapper.holds(list(ddp.parameters())) is True
    assert wrapper.holds(before) is False


def test_where_gradients_arrive_may_not_be_known(ddp, monkeypatch):
    def unknown(_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(listened, "get_gradient_edge", unknown)
    wrapper = DDPWrapper(ddp)
    assert wrapper.replaced() is False
    assert "replaced" not in wrapper.facts()


def test_replaced_before_anybody_listened(ddp):
    cast_there_and_back(ddp)
    assert DDPWrapper(ddp).replaced() is True


def test_a_trainer_that_wraps_is_named(ddp):
    namespace = {"__name__": "transformers.trainer", "wrap": DDPWrapper}
    exec("def prepare(model):\n    return wrap(model)\n", namespace)
    assert namespace["prepare"](ddp).facts()["wrapped by"] == "transformers"
    assert DDPWrapper(ddp).facts()["wrapped by"] == "script"
