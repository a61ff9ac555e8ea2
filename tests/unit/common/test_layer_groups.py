"""Names without wrappers, and layer groups."""

from __future__ import annotations

import pytest

from unisono.common.layer_groups import MOST_GROUPS, canonical_name, layer_groups


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("weight", "weight"),
        ("module.weight", "weight"),
        ("module._orig_mod.h.0.weight", "h.0.weight"),
        ("_orig_mod.module.h.0.weight", "h.0.weight"),
        ("_fsdp_wrapped_module.h.0._fsdp_wrapped_module._checkpoint_wrapped_module.weight", "h.0.weight"),
        ("h.0._orig_mod.mlp.weight", "h.0.mlp.weight"),
        ("encoder.module.weight", "encoder.module.weight"),
        ("module.encoder.module.weight", "encoder.module.weight"),
        ("module.module.weight", "module.weight"),
        ("modules.weight", "modules.weight"),
        ("module", "module"),
    ],
)
def test_canonical_name(name: str, bare: str) -> None:
    assert canonical_name(name) == bare


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("transformer.h.3.attn.c_attn.weight", "transformer.h.3"),
        ("layer1.0.conv1.weight", "layer1.0"),
        ("model.layers.10.experts.3.weight", "model.layers.10"),
        ("wte.weight", "wte"),
        ("lm_head.weight", "lm_head"),
        ("model.embed_tokens.weight", "model.embed_tokens"),
        ("cls_token", "cls_token"),
        ("0.weight", "0"),
        ("scales.2", "scales.2"),
    ],
)
def test_group_of_a_name(name: str, group: str) -> None:
    assert layer_groups([name]) == ([group], [0])


def test_groups_come_in_order_of_first_appearance() -> None:
    names = ["wte.weight", "h.1.a.weight", "h.0.a.weight", "h.1.b.weight", "lm_head.weight", "wte.bias"]
    assert layer_groups(names) == (["wte", "h.1", "h.0", "lm_head"], [0, 1, 2, 1, 3, 0])


def test_no_names_no_groups() -> None:
    assert layer_groups([]) == ([], [])


def test_exactly_as_many_as_allowed_stay_apart() -> None:
    groups, index = layer_groups([f"h.{i}.weight" for i in range(MOST_GROUPS)])
    assert groups == [f"h.{i}" for i in range(MOST_GROUPS)]
    assert index == list(range(MOST_GROUPS))


@pytest.mark.parametrize("blocks", [65, 100, 128, 1000])
def test_too_many_groups_are_merged_with_their_neighbours(blocks: int) -> None:
    groups, index = layer_groups([f"h.{i}.weight" for i in range(blocks)])
    sizes = [index.count(i) for i in range(MOST_GROUPS)]
    assert len(groups) == MOST_GROUPS
    assert index == sorted(index)
    assert max(sizes) - min(sizes) <= 1


def test_merged_groups_are_named_by_first_and_last() -> None:
    groups, _ = layer_groups([f"h.{i}.weight" for i in range(65)])
    assert groups[:2] == ["h.0 … h.1", "h.2"]
