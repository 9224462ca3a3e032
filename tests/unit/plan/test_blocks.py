"""Which modules are blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from ullage.search.costs.blocks import block_of_module, find_blocks


@pytest.fixture
def find() -> Callable[[Mapping[str, tuple[str, int]]], list[str]]:
    """find({"": ("Model", 0), "layers": ("ModuleList", 0), "layers.0": ("Layer", 90), ...}): the
    paths of the blocks of a tree of classes and of what each module keeps.
    """

    def find_in(tree: Mapping[str, tuple[str, int]]) -> list[str]:
        kinds = {path: kind for path, (kind, _) in tree.items()}
        kept = {path: size for path, (_, size) in tree.items()}
        return [block.path for block in find_blocks(kinds, kept)]

    return find_in


def layers(
    name: str, count: int, kind: str, *parts: tuple[str, str, int]
) -> dict[str, tuple[str, int]]:
    """A list of equal modules, each with parts."""
    tree = {name: ("ModuleList", 0)}
    for number in range(count):
        tree[f"{name}.{number}"] = (kind, 1)
        tree |= {f"{name}.{number}.{part}": (of, kept) for part, of, kept in parts}
    return tree


Find = Callable[[Mapping[str, tuple[str, int]]], list[str]]


def test_the_layers_of_a_transformer(find: Find) -> None:
    tree = {"": ("GPT", 0), "wte": ("Embedding", 5)}
    tree |= layers("h", 3, "Block", ("attn", "Attention", 50), ("mlp", "MLP", 60))
    assert find(tree | {"head": ("Linear", 5)}) == ["h.0", "h.1", "h.2"]


def test_stages_of_a_network_for_images(find: Find) -> None:
    tree: dict[str, tuple[str, int]] = {"": ("ResNet", 0), "conv1": ("Conv2d", 5)}
    for stage in ("layer1", "layer2"):
        tree[stage] = ("Sequential", 0)
        for number in range(2):
            tree[f"{stage}.{number}"] = ("Bottleneck", 1)
            tree[f"{stage}.{number}.conv1"] = ("Conv2d", 20)
    assert find(tree) == ["layer1.0", "layer1.1", "layer2.0", "layer2.1"]


def test_a_few_stages_are_looked_through_where_their_parts_keep_nearly_all(find: Find) -> None:
    tree: dict[str, tuple[str, int]] = {"": ("UNet", 0), "down": ("ModuleList", 0)}
    for number in range(3):
        tree[f"down.{number}"] = ("DownBlock", 1)
        tree |= layers(f"down.{number}.resnets", 2, "Resnet", ("conv", "Conv2d", 90))
    assert find(tree) == [f"down.{stage}.resnets.{part}" for stage in range(3) for part in range(2)]


def test_experts_within_few_layers_are_not_the_blocks(find: Find) -> None:
    tree: dict[str, tuple[str, int]] = {"": ("MoE", 0), "layers": ("ModuleList", 0)}
    for number in range(2):
        tree[f"layers.{number}"] = ("Layer", 1)
        tree[f"layers.{number}.attn"] = ("Attention", 100)
        tree |= layers(f"layers.{number}.experts", 4, "Expert", ("up", "Linear", 10))
    assert find(tree) == ["layers.0", "layers.1"]


def test_single_layers_are_no_blocks(find: Find) -> None:
    tree = {"": ("Sequential", 0)} | {str(number): ("Linear", 10) for number in range(4)}
    assert find(tree) == []


def test_what_is_in_a_block_is_of_it(find: Find) -> None:
    from ullage.search.costs.blocks import Block

    modules = ("", "h", "h.1", "h.1.mlp", "h.10", "head")
    of = block_of_module([Block("h.1", "Block"), Block("h.10", "Block")], modules)
    assert of.tolist() == [-1, -1, 0, 0, 1, -1, -1]
