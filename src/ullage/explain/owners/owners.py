"""The owner of each block: recorded if ullage recorded the run, else guessed.

A guess uses the functions in a block's stack and the block's birth and death. All owners of a
snapshot are recorded, or all are guesses; the two are never mixed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ullage.explain.owners.modules import ModuleOwners
from ullage.explain.owners.ownership import CATEGORIES, code_of
from ullage.log.blocks import BoolArray
from ullage.log.model import Category, Int64Array, UInt8Array

if TYPE_CHECKING:
    from ullage.log.replay import Replay
    from ullage.log.snapshot import Stacks


@dataclass(frozen=True, slots=True)
class Owners:
    """The owner of each block of a table.

    Attributes:
        category: (num_blocks,) indices into CATEGORIES.
        is_known: whether ullage recorded the owners; else they are guesses.
        modules: the module of each block; None if ullage did not record the run.
        precision: (num_blocks,) of their numbers, indices into PRECISIONS; None: not recorded.
    """

    category: UInt8Array
    is_known: bool
    modules: ModuleOwners | None = None
    precision: UInt8Array | None = None

    def of_rows(self, row: Int64Array) -> Owners:
        """The owners of the blocks in these rows; -1 stands for an unknown block."""
        category = np.append(self.category, np.uint8(code_of(Category.UNATTRIBUTED)))[row]
        modules = None if self.modules is None else self.modules.of_rows(row)
        precision = None if self.precision is None else np.append(self.precision, np.uint8(0))[row]
        return Owners(category, self.is_known, modules, precision)


def guess_owners(stacks: Stacks, replay: Replay) -> Owners:
    """Guesses the owners of a snapshot that ullage did not record."""
    return Owners(_guess(stacks, replay), is_known=False)


# Patterns of functions that show the purpose of an allocation, the strongest first. The first rule
# that matches any frame of a stack decides. Paths may be shorter if somebody scrubbed the file.
_RULES: tuple[tuple[re.Pattern[str], Category], ...] = (
    (re.compile(r"torch/optim/.*\b(_init_group|step|_single_tensor|_multi_tensor|_fused)"
                r"|optim[^/]*\.py (step|_init_group|_single_tensor\w*|_multi_tensor\w*)$"
                r"| profile_hook_step|torch/optim/optimizer\.py wrapper$"),
     Category.OPTIMIZER_STATE),
    (re.compile(r"torch/(autograd/(__init__|graph)|_tensor)\.py \w*backward"
                r"| torch::autograd::(Engine|Node)"), Category.GRADIENT),
    (re.compile(r"torch/distributed/"), Category.COMMUNICATION),
    (re.compile(r"\bcache_utils\w*\.py|[kK][vV]_?[cC]ache"), Category.KV_CACHE),
    (re.compile(r"\bnn/modules/module\.py (_apply|convert|to|cuda)\b"
                r"|^modules/module\.py (_apply|convert|to|cuda)\b| from_pretrained$"
                r"| load_state_dict$| reset_parameters$"), Category.PARAMETER),
    (re.compile(r"\bmodules/module\.py _(wrapped_)?call_impl| forward$"),
     Category.ACTIVATION),
    (re.compile(r"torch/utils/data/| \w*(collate|get_batch|load_batch|make_batch)\w*$"),
     Category.INPUT),
)  # fmt: skip


def _guess(stacks: Stacks, replay: Replay) -> UInt8Array:
    """Guesses categories from the stacks; a block that lives only briefly is temporary."""
    texts = map("{} {}".format, stacks.frames.file, stacks.frames.function)
    of_frame = [
        next((n for n, (rule, _) in enumerate(_RULES) if rule.search(text)), len(_RULES))
        for text in texts
    ]
    rules = np.array(of_frame, dtype=np.uint8)
    bounds = itertools.pairwise(stacks.start.tolist())
    of_stack = np.array(
        [rules[stacks.frame[begin:end]].min(initial=len(_RULES)) for begin, end in bounds],
        dtype=np.int64,
    )
    codes = np.array(
        [*(code_of(category) for _, category in _RULES),
         code_of(Category.UNATTRIBUTED)],
        dtype=np.uint8,
    )  # fmt: skip
    blocks = replay.blocks
    categories = codes[of_stack[blocks.stack]]
    # What a pass or the optimizer frees almost at once.
    is_gone = (blocks.birth >= 0) & (blocks.death < replay.num_events)
    is_brief = is_gone & (blocks.death - blocks.birth <= _BRIEF_EVENTS)
    may_be = np.isin(categories, [code_of(category) for category in _BRIEF_ARE_TEMPORARY])
    return np.where(is_brief & may_be, np.uint8(code_of(Category.TEMPORARY)), categories)


# A block that the next operation frees lives for about three events: a free has two events itself.
_BRIEF_EVENTS = 6
_BRIEF_ARE_TEMPORARY: Sequence[Category] = (
    Category.ACTIVATION, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.UNATTRIBUTED,
)  # fmt: skip


def sum_by_category(owners: Owners, sizes: Int64Array, live: BoolArray) -> dict[Category, int]:
    """The bytes of each category among live blocks, in the order of CATEGORIES, without zeros."""
    sums = np.zeros(len(CATEGORIES), dtype=np.int64)
    np.add.at(sums, owners.category[live], sizes[live])
    return {category: int(size) for category, size in zip(CATEGORIES, sums, strict=True) if size}
