"""What ranks send: bounded at rank 0, the same on all of them, and whole when it arrives.

Suffixes give shapes: W = workers, G = layer groups, K = sketch length, P = bytes of a packet.
"""

import pytest
import torch

from unisono.common.layer_groups import MOST_GROUPS
from unisono.exchange.gloo_channel import MOST_PENDING_BYTES, GlooChannel, Payload, Payloads
from unisono.sketch import dequantise, narrow, quantise, window_seed
from unisono.sketch.wire_format import WireFormat

LENGTHS = {2: 65_536, 64: 65_536, 65: 65_536, 256: 65_536, 512: 32_768, 1_000: 16_384, 1_024: 16_384, 4_096: 4_096}
LENGTHS |= {16_384: 1_024, 100_000: 1_024}


@pytest.mark.parametrize(("world", "length"), LENGTHS.items())
def test_sketches_are_shorter_with_more_workers(world, length):
    assert WireFormat(65_536, MOST_GROUPS, world).length == length


@pytest.mark.parametrize("world", [65, 100, 128, 129, 256, 1_000, 4_096, 16_384])
def test_what_rank_0_receives_is_bounded(world):
    received = world * WireFormat(65_536, MOST_GROUPS, world).size
    assert received < 17e6
    # Several readings may be under way.
    assert 3 * received < MOST_PENDING_BYTES


def test_small_models_keep_their_length():
    assert WireFormat(2_048, 3, 1_024).length == 2_048


@pytest.mark.parametrize("world", [1, 2, 64])
def test_up_to_64_workers_a_group_has_a_sixteenth(world):
    layout = WireFormat(65_536, MOST_GROUPS, world)
    assert (layout.groups, layout.group_length) == (MOST_GROUPS, 4_096)


@pytest.mark.parametrize(("world", "groups", "length"), [(65, 64, 2_048), (128, 64, 1_024), (129, 0, 0)])
def test_groups_take_what_is_left_and_go_where_nobody_looks(world, groups, length):
    layout = WireFormat(65_536, MOST_GROUPS, world)
    assert (layout.groups, layout.groups and layout.group_length) == (groups, length)


def packets(layout, sketches, window=32, step=40):
    bodies = [None if sketch_GK is None else layout.encode(sketch_GK, window) for sketch_GK in sketches]
    return torch.stack([Payload(step, window, body).to_bytes(layout.size) for body in bodies])


def arrived(layout, packets_WP):
    payloads = Payloads.from_packets(packets_WP)
    return layout.decode(payloads.body_WB, payloads.sent_W)


@pytest.mark.parametrize("world", [2, 100])
def test_sketches_arrive_as_they_were_rounded(world):
    layout = WireFormat(4_096, 3, world)
    sketch_WGK = torch.randn(2, 3, 4_096)
    found = arrived(layout, packets(layout, sketch_WGK))
    for worker, sketch_GK in enumerate(sketch_WGK):
        whole_K = dequantise(*quantise(sketch_GK.sum(0)))
        torch.testing.assert_close(dequantise(found.sketch_WK, found.scale_W)[worker], whole_K, rtol=0, atol=0)
        group_Gk = dequantise(*quantise(narrow(sketch_GK, layout.group_length, window_seed(32))))
        arrived_Gk = dequantise(found.sketch_GWK, found.scale_GW)[:, worker]
        torch.testing.assert_close(arrived_Gk, group_Gk, rtol=0, atol=0)


def test_very_many_workers_send_the_shortened_sketch_alone():
    layout = WireFormat(65_536, 3, 1_024)
    sketch_WGK = torch.randn(2, 3, 65_536)
    found = arrived(layout, packets(layout, sketch_WGK))
    assert found.sketch_GWK is None
    assert found.sketch_WK.shape == (2, 16_384)
    shortened_WK = narrow(sketch_WGK.sum(1), 16_384, window_seed(32))
    torch.testing.assert_close(dequantise(found.sketch_WK, found.scale_W), shortened_WK, rtol=0, atol=0.2)


def test_a_rank_that_could_not_listen_has_no_scale():
    layout = WireFormat(1_024, 2, 3)
    found = arrived(layout, packets(layout, [torch.randn(2, 1_024), None, torch.randn(2, 1_024)]))
    assert found.scale_W.isnan().tolist() == [False, True, False]
    assert found.scale_GW.isnan().all(0).tolist() == [False, True, False]


@pytest.mark.parametrize("other", [{"step": 41}, {"window": 64}])
def test_ranks_that_speak_of_different_steps_are_not_laid_side_by_side(other):
    layout = WireFormat(1_024, 1, 2)
    sketches = [torch.randn(1, 1_024)]
    mixed_WP = torch.cat([packets(layout, sketches), packets(layout, sketches, **other)])
    assert Payloads.from_packets(mixed_WP) is None


def test_packets_of_another_kind_are_refused():
    layout = WireFormat(1_024, 1, 2)
    packets_WP = packets(layout, [torch.randn(1, 1_024)] * 2)
    packets_WP[:, 0] = 0
    assert Payloads.from_packets(packets_WP) is None


class UnderWay:
    issued = float("inf")


@pytest.mark.parametrize(("pending", "stuck"), [(0, False), (1, False), (2, True)])
def test_one_gather_is_never_too_much(pending, stuck):
    channel = object.__new__(GlooChannel)
    channel._rank, channel._world, channel._size = 0, 4, MOST_PENDING_BYTES
    channel._pending = [UnderWay()] * pending
    assert channel.stuck() is stuck
