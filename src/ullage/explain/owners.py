"""Who owns each block of a snapshot: known where ullage recorded the run, else guessed.

A guess is made from the functions in a block's stack and from its birth and death, and is never
mixed with what is known: a snapshot has one or the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ullage.errors import SnapshotError
from ullage.explain.ownership import CATEGORIES, attribute, code_of
from ullage.explain.phases import find_regions
from ullage.trace.lifetime import find_lifetimes
from ullage.trace.model import Category, Record, UInt8Array
from ullage.trace.reader import parse_record
from ullage.trace.replay import Replay
from ullage.trace.snapshot import Snapshot, Stacks


@dataclass(frozen=True, slots=True)
class Owners:
    """The category of each block of a `Replay`, as an index into CATEGORIES.

    Attributes:
        category: (num_blocks,).
        is_known: whether ullage recorded them; else they are guesses.
        remark: why what was recorded could not be used; empty where it was, or there was nothing.
    """

    category: UInt8Array
    is_known: bool
    remark: str = ""


def find_owners(snapshot: Snapshot, replay: Replay, device: int = 0) -> Owners:
    """The owner of each block."""
    remark = ""
    if snapshot.record is not None:
        try:
            known = _known_owners(parse_record(snapshot.record), replay, device)
        except SnapshotError as error:
            known, remark = None, f"what ullage recorded in it cannot be used: {error}"
        if known is not None:
            return Owners(known, is_known=True)
        remark = remark or "what ullage recorded in it is not of these events"
    return Owners(_guess(snapshot.stacks, replay), is_known=False, remark=remark)


def _known_owners(record: Record, replay: Replay, device: int) -> UInt8Array | None:
    """The categories of the record, brought to the blocks of the trace; None where the two do not
    tell of the same allocations.

    The record knows every allocation of the process; the trace may have begun later or have lost
    its oldest events, but both end together: the last allocations of one are those of the other.
    """
    lives = find_lifetimes(record.events, record.first_position)
    categories = attribute(
        lives,
        record.claims,
        record.workspaces,
        find_regions(record.marks, record.first_position),
        oom_positions=[oom.position for oom in record.ooms],
    )
    mine = np.flatnonzero(lives.device == device)
    mine = mine[np.argsort(lives.birth[mine], kind="stable")]
    theirs = np.flatnonzero(replay.blocks.birth >= 0)
    found = np.full(len(replay.blocks), code_of(Category.UNATTRIBUTED), dtype=np.uint8)
    num_before = len(mine) - len(theirs)
    if num_before < 0:
        return None
    same = lives.size_bytes[mine[num_before:]] == replay.blocks.size_bytes[theirs]
    if not same.all():
        return None
    found[theirs] = categories[mine[num_before:]]
    # Of those from before the trace: the last at their address before it began.
    last_at = {int(lives.address[row]): int(row) for row in mine[:num_before]}
    for block in np.flatnonzero(replay.blocks.birth < 0):
        row = last_at.get(int(replay.blocks.address[block]))
        if row is not None:
            found[block] = categories[row]
    return found


# The functions that say what an allocation is for, most telling first; of a stack the first rule
# that any of its frames meets decides.
_RULES: tuple[tuple[re.Pattern[str], Category], ...] = (
    (re.compile(r"torch/optim/.*\b(_init_group|step|_single_tensor|_multi_tensor|_fused)"),
     Category.OPTIMIZER_STATE),
    (re.compile(r"torch/(autograd/(__init__|graph)|_tensor)\.py \S*backward"
                r"| torch::autograd::(Engine|Node)"), Category.GRADIENT),
    (re.compile(r"torch/distributed/"), Category.COMMUNICATION),
    (re.compile(r"cache_utils\.py|\S*[kK][vV]_?[cC]ache"), Category.KV_CACHE),
    (re.compile(r"torch/nn/modules/module\.py (_apply|convert|to|cuda)\b|\S+ from_pretrained$"
                r"|\S+ load_state_dict$|\S+ reset_parameters$"), Category.PARAMETER),
    (re.compile(r"torch/nn/modules/module\.py _(wrapped_)?call_impl|\S+ forward$"),
     Category.ACTIVATION),
    (re.compile(r"torch/utils/data/|\S+ \w*(collate|get_batch|load_batch|make_batch)\w*$"),
     Category.INPUT),
)  # fmt: skip


def _guess(stacks: Stacks, replay: Replay) -> UInt8Array:
    """Categories by stack; what was made for a moment within an operation is temporary."""
    of_frame = [_rule_of(f"{file} {function}") for file, function in
                zip(stacks.frames.file, stacks.frames.function, strict=True)]  # fmt: skip
    rules = np.array(of_frame, dtype=np.uint8)
    of_stack = np.array([_strongest(rules, stacks, stack) for stack in range(len(stacks))])
    codes = np.array(
        [*(code_of(category) for _, category in _RULES), code_of(Category.UNATTRIBUTED)],
        dtype=np.uint8,
    )
    found = codes[of_stack[replay.blocks.stack]]
    return _tell_temporaries(found, replay)


def _rule_of(frame: str) -> int:
    return next((n for n, (rule, _) in enumerate(_RULES) if rule.search(frame)), len(_RULES))


def _strongest(rules: UInt8Array, stacks: Stacks, stack: int) -> int:
    frames = stacks.frame[stacks.start[stack] : stacks.start[stack + 1]]
    return int(rules[frames].min()) if len(frames) else len(_RULES)


def _tell_temporaries(categories: UInt8Array, replay: Replay) -> UInt8Array:
    """What backward, the optimizer or a forward pass frees again almost at once was scratch."""
    blocks = replay.blocks
    is_brief = (blocks.death - blocks.birth <= _BRIEF_EVENTS) & (blocks.birth >= 0)
    may_be = np.isin(categories, [code_of(category) for category in _BRIEF_ARE_TEMPORARY])
    return np.where(is_brief & may_be, np.uint8(code_of(Category.TEMPORARY)), categories)


# Three events end a block that the next operation frees: its own free has two.
_BRIEF_EVENTS = 6
_BRIEF_ARE_TEMPORARY: Sequence[Category] = (
    Category.ACTIVATION, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.UNATTRIBUTED,
)  # fmt: skip


def sum_by_category(owners: Owners, sizes: np.ndarray, live: np.ndarray) -> dict[Category, int]:
    """The bytes of each category among live blocks, in the order of CATEGORIES, without zeros."""
    sums = np.zeros(len(CATEGORIES), dtype=np.int64)
    np.add.at(sums, owners.category[live], sizes[live])
    return {category: int(size) for category, size in zip(CATEGORIES, sums, strict=True) if size}
