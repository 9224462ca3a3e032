"""The judge: the owners that ullage gives to the blocks of a peak, beside the truth.

The truth is what tests/programs/attribution/truth.py wrote down while the program ran. A block
whose truth is not known counts as wrong. Where an operation allocates and frees without returning,
nobody outside of it can tell a library's scratch memory from its own: both answers are right there.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ullage.explain.log import Log, read_log
from ullage.explain.moments.levels import read_levels
from ullage.explain.owners.modules import NO_MODULE
from ullage.explain.owners.ownership import CATEGORIES
from ullage.log.blocks import Blocks, find_blocks
from ullage.log.model import Category, Record

# What the program says of a storage, strongest first, and the category that follows from it.
SAYINGS = {
    "parameter": Category.PARAMETER,
    "buffer": Category.BUFFER,
    "optimizer_state": Category.OPTIMIZER_STATE,
    "gradient": Category.GRADIENT,
    "kv_cache": Category.KV_CACHE,
    "input": Category.INPUT,
    "communication": Category.COMMUNICATION,
    "saved": Category.ACTIVATION,
    "returned": Category.ACTIVATION,
    "hidden": Category.ACTIVATION,
    "output": Category.TEMPORARY,
}
UNKNOWN = "unknown"
OUTSIDE = "(outside)"
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_SCRATCH = frozenset({Category.TEMPORARY, Category.WORKSPACE})


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a block belongs to.

    Attributes:
        categories: each of them is right; empty: not known.
        module: a path; None: outside of all modules.
        has_module: False: the module is not known.
    """

    categories: frozenset[Category]
    module: str | None
    has_module: bool = True

    @property
    def category_text(self) -> str:
        """The categories in one word."""
        return " or ".join(sorted(c.value for c in self.categories)) or UNKNOWN

    @property
    def module_text(self) -> str:
        """The module, with the numbers of equal layers left out."""
        if not self.has_module:
            return UNKNOWN
        if self.module is None:
            return OUTSIDE
        return _NUMBER.sub("*", self.module) or "(root)"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The blocks of one peak, judged; `wrong_*` are bytes by (truth, answer), largest first."""

    peak_bytes: int
    category_bytes: int
    module_bytes: int
    unknown_bytes: int
    wrong_categories: tuple[tuple[tuple[str, str], int], ...]
    wrong_modules: tuple[tuple[tuple[str, str], int], ...]

    @property
    def category_frac(self) -> float:
        """The share of the peak's bytes with the right category."""
        return self.category_bytes / self.peak_bytes

    @property
    def module_frac(self) -> float:
        """The share of the peak's bytes with the right module."""
        return self.module_bytes / self.peak_bytes

    @property
    def unknown_frac(self) -> float:
        """The share of the peak's bytes of which the program does not know the owner."""
        return self.unknown_bytes / self.peak_bytes


@dataclass(frozen=True, slots=True)
class Peak:
    """The blocks that are live at the highest allocated bytes of a device, and their owners."""

    size_bytes: npt.NDArray[np.int64]
    truth: tuple[Owner, ...]
    answer: tuple[Owner, ...]


def find_peak(record: Record, truth_file: Path, device: int = 0) -> Peak:
    """What the program knows, and what ullage says, of the blocks of a device's peak."""
    log = read_log(record)
    lives, peak = log.blocks, read_levels(record, log.blocks, device).peak_event
    rows = np.flatnonzero(lives.is_live(peak) & (lives.device == device))
    owners = _true_owners(lives, json.loads(truth_file.read_text(encoding="utf-8")))
    return Peak(
        size_bytes=lives.size_bytes[rows],
        truth=tuple(owners[row] for row in rows),
        answer=_answers(log, rows),
    )


def judge(peak: Peak) -> Judgement:
    """Compares block by block."""
    right_category = right_module = unknown = 0
    categories: Counter[tuple[str, str]] = Counter()
    modules: Counter[tuple[str, str]] = Counter()
    for size, truth, answer in zip(peak.size_bytes, peak.truth, peak.answer, strict=True):
        num_bytes = int(size)
        if answer.categories <= truth.categories:
            right_category += num_bytes
        else:
            categories[truth.category_text, answer.category_text] += num_bytes
        if truth.has_module and answer.module == truth.module:
            right_module += num_bytes
        else:
            modules[truth.module_text, answer.module_text] += num_bytes
        if not truth.categories or not truth.has_module:
            unknown += num_bytes
    return Judgement(
        peak_bytes=int(peak.size_bytes.sum()),
        category_bytes=right_category,
        module_bytes=right_module,
        unknown_bytes=unknown,
        wrong_categories=tuple(categories.most_common()),
        wrong_modules=tuple(modules.most_common()),
    )


def _answers(log: Log, rows: npt.NDArray[np.int64]) -> tuple[Owner, ...]:
    category, modules = log.owners.category, log.owners.modules
    assert modules is not None, "a record knows the modules"
    paths: Sequence[str | None] = (*modules.names, None)
    assert NO_MODULE == -1, "the last path stands for no module"
    return tuple(
        Owner(frozenset({CATEGORIES[category[row]]}), paths[modules.index[row]]) for row in rows
    )


def _true_owners(lives: Blocks, truth: dict[str, Any]) -> list[Owner]:
    """The true owner of each allocation."""
    said = _strongest_sayings(lives, truth["claims"])
    sayings = tuple(SAYINGS.items())
    turns = np.array([position for position, _ in truth["turns"]], dtype=np.int64)
    turn = np.searchsorted(turns, lives.birth, side="right") - 1
    operation_end = _operation_ends(lives, truth["operations"])
    cleared_begin, cleared_end = truth["cleared"]
    owners = []
    for row, (rank, path) in enumerate(said):
        death = lives.death[row] + 1
        if rank is not None:
            categories = frozenset({sayings[rank][1]})
        elif cleared_begin < death <= cleared_end:
            categories = frozenset({Category.WORKSPACE})
        elif operation_end[lives.birth[row]] >= death:
            categories = _SCRATCH
        else:
            categories = frozenset()
        has_module = path is not None or turn[row] >= 0
        if path is None and turn[row] >= 0:
            path = truth["turns"][turn[row]][1]
        owners.append(Owner(categories, path, has_module))
    return owners


def _strongest_sayings(
    lives: Blocks, claims: Sequence[Sequence[Any]]
) -> list[tuple[int | None, str | None]]:
    """For each allocation the rank of the strongest thing said of it, and the module named so."""
    rank_of = {saying: rank for rank, saying in enumerate(SAYINGS)}
    columns = [np.array([claim[n] for claim in claims], dtype=np.int64) for n in range(3)]
    found: list[tuple[int | None, str | None]] = [(None, None)] * len(lives)
    for row, claim in zip(find_blocks(lives, *columns), claims, strict=True):
        if row == len(lives):
            continue
        rank, path = rank_of[claim[3]], claim[4]
        best, known = found[row]
        if best is None or rank < best or (rank == best and known is None):
            found[row] = (rank, path)
        elif rank == best and path is not None and known is not None:
            # What several parameters share belongs to what holds them all.
            found[row] = (rank, _common(path, known))
    return found


def _common(path: str, other: str) -> str:
    """The innermost module that holds two."""
    pairs = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(path.split("."), other.split("."), strict=False)
    )
    return ".".join(name for name, _ in pairs)


def _operation_ends(lives: Blocks, operations: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """For each event the position at which the operation ended that it was part of; 0: none."""
    ends = np.zeros(int(lives.birth.max(initial=0)) + 2, dtype=np.int64)
    for begin, end in operations:  # an operation within another comes before it
        ends[begin:end] = end
    return ends


def shuffle(peak: Peak, seed: int = 0) -> Peak:
    """The same peak with its true owners dealt out anew: what no honest answer agrees with."""
    order = np.random.default_rng(seed).permutation(len(peak.truth))
    return Peak(peak.size_bytes, tuple(peak.truth[n] for n in order), peak.answer)


__all__ = ["Judgement", "Owner", "Peak", "find_peak", "judge", "shuffle"]
