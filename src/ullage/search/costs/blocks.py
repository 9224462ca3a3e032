"""Finds the blocks of a program: modules that are repeated, such as the layers of a transformer.
A search chooses techniques for modules block by block.

    blocks = find_blocks(made_for.modules, kept_by_module(record))
    blocks[0].path                                  # "transformer.h.0"

A block is one of several children of a list of modules, or of several children of one class, and
has children itself. Where a list has few equal children, such as the stages of a U-Net, and the
lists in them keep nearly all of their memory for backward, the children of these are the blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ullage.ground.protocol.plain import As
from ullage.log.model import Int64Array

# This many equal modules are enough blocks: their parts are not searched for smaller ones.
_MANY = 6
_NEARLY_ALL = 0.8
_CONTAINERS = {"ModuleList", "Sequential", "ModuleDict"}


@dataclass(frozen=True, slots=True)
class Block:
    """A module that gets one treatment.

    Attributes:
        path: of the module.
        kind: its class.
    """

    path: str
    kind: Annotated[str, As("class")]


def find_blocks(kinds: Mapping[str, str], kept_bytes: Mapping[str, int]) -> tuple[Block, ...]:
    """The blocks of a program, in its order.

    Args:
        kinds: the class of each module, by its path.
        kept_bytes: the memory that each module's own forward keeps for backward, by its path.
    """
    children: dict[str, list[str]] = {}
    for path in kinds:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)
    paths = _Finder(kinds, children, kept_bytes).below("")
    return tuple(Block(path, kinds[path]) for path in paths)


def block_of_module(blocks: Sequence[Block], modules: Sequence[str]) -> Int64Array:
    """For each module the index of its block, -1 for none; the last entry is for operations outside
    of all modules.
    """
    known = {block.path: number for number, block in enumerate(blocks)}
    block_of = np.full(len(modules) + 1, -1, dtype=np.int64)
    for number, path in enumerate(modules):
        while path and path not in known:
            path = path.rpartition(".")[0]
        block_of[number] = known.get(path, -1)
    return block_of


@dataclass(frozen=True, slots=True)
class _Finder:
    kinds: Mapping[str, str]
    children: Mapping[str, list[str]]
    kept_bytes: Mapping[str, int]

    def below(self, path: str) -> list[str]:
        blocks: list[str] = []
        group = self.group(path)
        inner = [block for child in group for block in self.below(child)]
        if group and not (self.is_better(inner, group)):
            blocks += group
        elif group:
            blocks += inner
        rest = [child for child in self.children.get(path, ()) if child not in group]
        return blocks + [block for child in rest for block in self.below(child)]

    def group(self, path: str) -> list[str]:
        """The children of a module that share a class, or are in a list."""
        grown = [
            child
            for child in self.children.get(path, ())
            if child in self.children and self.kinds[child] not in _CONTAINERS
        ]
        if self.kinds.get(path) in _CONTAINERS:
            return grown
        counts = Counter(self.kinds[child] for child in grown)
        return [child for child in grown if counts[self.kinds[child]] > 1]

    def is_better(self, inner: Sequence[str], group: Sequence[str]) -> bool:
        """True if the blocks within the blocks replace them."""
        kinds = Counter(self.kinds[child] for child in group)
        if len(inner) < 2 or max(kinds.values()) >= _MANY:
            return False
        whole = sum(self.kept_in(block) for block in group)
        return sum(self.kept_in(block) for block in inner) >= _NEARLY_ALL * whole

    def kept_in(self, path: str) -> int:
        """The memory that a module and all modules in it keep."""
        return sum(self.kept_bytes.get(inner, 0) for inner in self.all_in(path))

    def all_in(self, path: str) -> Iterator[str]:
        yield path
        for child in self.children.get(path, ()):
            yield from self.all_in(child)
