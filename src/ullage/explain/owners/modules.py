"""The module of each allocation, and the memory of each module at a moment.

The memory of a parameter (itself, its gradient, its optimizer state) belongs to the module that has
the parameter. Any other memory belongs to the module whose forward allocated it. In backward, it
belongs to the module whose forward created the graph node that allocated it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ullage.explain.owners.ownership import CLAIM_ORDER
from ullage.ground.protocol.plain import As, Mark
from ullage.log.blocks import Blocks, find_blocks
from ullage.log.model import Category, Claims, Int32Array, Int64Array, Record

NO_MODULE = -1
_NAMED = (Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE, Category.GRADIENT)
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True, slots=True)
class ModuleOwners:
    """The module of each allocation.

    Attributes:
        names: the path of every module within the root module; "" is the root itself.
        index: (num_allocations,) indices into names; NO_MODULE for allocations outside of modules.
    """

    names: tuple[str, ...]
    index: Int32Array

    def of_rows(self, row: Int64Array) -> ModuleOwners:
        """The modules of the allocations in these rows; -1 stands for an unknown allocation."""
        return ModuleOwners(self.names, np.append(self.index, np.int32(NO_MODULE))[row])


@dataclass(frozen=True, slots=True)
class ModuleShare:
    """The memory of a module, or of several equal ones, at a moment.

    Attributes:
        path: the path of the module, or of several whose paths differ only in numbers, such as
            "layers.*.mlp"; None for allocations outside of modules.
        num_modules: the number of these modules.
        size_bytes: the size of their live blocks.
    """

    path: str | None
    num_modules: Annotated[int, Mark.NO_KEY]
    size_bytes: Annotated[int, As("bytes")]


def attribute_modules(record: Record, blocks: Blocks) -> ModuleOwners:
    """Finds the module of each allocation of a record."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(record.modules))}
    of_scope = np.array([*(numbers[name] for name in record.modules), NO_MODULE], dtype=np.int32)
    scope = np.append(record.events.scope, np.int32(NO_MODULE))[blocks.birth]
    # A damaged record may name a module that it does not list.
    scope = np.where((scope >= 0) & (scope < len(record.modules)), scope, NO_MODULE)
    index = of_scope[scope]
    _settle_claimed(index, blocks, record.claims, numbers)
    return ModuleOwners(tuple(numbers), index)


def share_by_module(
    owners: ModuleOwners | None, live: npt.NDArray[np.bool_], size_bytes: Int64Array
) -> tuple[ModuleShare, ...]:
    """Sums the live blocks of each module, the largest first; none where they are not known."""
    if owners is None:
        return ()
    index = owners.index[live].astype(np.int64)
    sums = np.zeros(len(owners.names) + 1, dtype=np.int64)
    np.add.at(sums, index, size_bytes[live])  # NO_MODULE is the last
    paths: Sequence[str | None] = (*owners.names, None)
    shares = [
        ModuleShare(path, 1, int(size)) for path, size in zip(paths, sums, strict=True) if size
    ]
    return tuple(sorted(shares, key=lambda share: -share.size_bytes))


def merge_numbered(shares: Sequence[ModuleShare]) -> tuple[ModuleShare, ...]:
    """Merges modules whose paths differ only in numbers, as those of equal layers do."""
    groups: dict[str | None, list[ModuleShare]] = {}
    for share in shares:
        path = None if share.path is None else _NUMBER.sub("*", share.path)
        groups.setdefault(path, []).append(share)
    merged = [
        group[0]
        if len(group) == 1
        else ModuleShare(path, len(group), sum(share.size_bytes for share in group))
        for path, group in groups.items()
    ]
    return tuple(sorted(merged, key=lambda share: -share.size_bytes))


def _settle_claimed(
    index: Int32Array, blocks: Blocks, claims: Claims, numbers: dict[str, int]
) -> None:
    """Assigns the memory of a parameter or buffer to its module. If several have an equally strong
    claim, it goes to the innermost module that contains all of them.
    """
    at = [
        number
        for number, (category, name) in enumerate(zip(claims.category, claims.name, strict=True))
        if name and category in _NAMED
    ]
    rows = np.array(at, dtype=np.int64)
    claimed = find_blocks(blocks, claims.position[rows], claims.device[rows], claims.address[rows])
    settled: dict[int, tuple[int, str]] = {}
    for number, block in zip(at, claimed.tolist(), strict=True):
        strength = CLAIM_ORDER.index(claims.category[number])
        path = claims.name[number].rpartition(".")[0]
        known = settled.get(block)
        if known is None or strength < known[0]:
            settled[block] = (strength, path)
        elif strength == known[0] and path != known[1]:
            settled[block] = (strength, _shared(path, known[1]))
    settled.pop(len(blocks), None)
    for block, (_, path) in settled.items():
        index[block] = numbers.setdefault(path, len(numbers))


def _shared(path: str, other: str) -> str:
    """The innermost module that contains both."""
    parts = zip(path.split("."), other.split("."), strict=False)
    return ".".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], parts))
