"""The owner of each allocation, decided from claims, from workspaces of libraries, and from phases.

Claims come first; earlier ones in CLAIM_ORDER are stronger. The category of an allocation without a
claim follows from its birth and death:

    born in                and                                            owner
    a forward pass         alive after it ends                            ACTIVATION
      with gradients       gone before it ends                            TEMPORARY
      without              kept for later passes (carried.py)             KV_CACHE
                           gone before the next allocation                TEMPORARY,
                           otherwise                                      ACTIVATION
    the loss               alive when what follows begins                 ACTIVATION
                           otherwise                                      TEMPORARY
    backward, recomputed   gone when backward has used it                 ACTIVATION
                           gone before                                    TEMPORARY
    backward and later     gone before the step ends                      TEMPORARY
                           otherwise                                      UNATTRIBUTED
    between the passes     alive when a forward pass begins               INPUT
                           otherwise                                      UNATTRIBUTED

Source: the categories of torch's memory profiler and MemTracker; TEMPORARY memory dies within the
operation or the backward step. Without gradients nothing is saved for backward: a block that is
live while another is allocated is a hidden state on its way to the next operation. In backward,
autograd builds a graph only during recomputation, so the events tell the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ullage.explain.carried import find_carried
from ullage.explain.moments.course import Course, Phase
from ullage.log.blocks import NEVER, Blocks, BoolArray, find_blocks
from ullage.log.model import Category, Claims, Record, UInt8Array, Workspaces

CATEGORIES = tuple(Category)
_EXCHANGES = "NCCL"
_CODE = {category: code for code, category in enumerate(CATEGORIES)}

# Strongest first: a parameter that is also an input to something stays a parameter.
CLAIM_ORDER = (
    Category.PARAMETER,
    Category.BUFFER,
    Category.OPTIMIZER_STATE,
    Category.GRADIENT,
    Category.COMMUNICATION,
    Category.KV_CACHE,
    Category.INPUT,
    Category.WORKSPACE,
)


def code_of(category: Category) -> int:
    """The code of a category in a column: its index in CATEGORIES."""
    return _CODE[category]


def attribute_record(record: Record, blocks: Blocks, course: Course) -> UInt8Array:
    """Finds the category of each allocation of a record, as indices into CATEGORIES."""
    # What backward computes again: born while autograd built a graph, and freed while it did not.
    has_graph = np.append(record.events.has_graph, np.False_)  # the last one stands for no event
    in_backward = course.phase[course.region_at(blocks.birth)] == Phase.BACKWARD
    return attribute(
        blocks,
        record.claims,
        record.workspaces,
        course,
        masks={
            Category.ACTIVATION: in_backward & has_graph[blocks.birth] & ~has_graph[blocks.death],
            Category.KV_CACHE: find_carried(record, blocks, course),
        },
        oom_positions=[oom.position for oom in record.ooms],
    )


def attribute(
    blocks: Blocks,
    claims: Claims,
    workspaces: Workspaces,
    course: Course,
    *,
    masks: Mapping[Category, BoolArray] = MappingProxyType({}),
    oom_positions: Sequence[int] = (),
) -> UInt8Array:
    """Finds the category of each allocation, as indices into CATEGORIES.

    `masks` gives categories to blocks without a claim. The memory of a pass that is live at one of
    the `oom_positions` is an activation, because the pass had not ended.
    """
    by_phase = _categories_by_phase(blocks, course)
    for position in oom_positions:
        event = position - blocks.first_position - 1
        now = course.region_at(np.array([event]))[0]
        if course.phase[now] in (Phase.FORWARD, Phase.LOSS):
            is_held = (course.region_at(blocks.birth) == now) & blocks.is_live(event)
            by_phase[is_held] = code_of(Category.ACTIVATION)
    for category, is_of_it in masks.items():
        by_phase[is_of_it] = code_of(category)
    # A tensor that a pass saves for backward stays an activation even if ranks exchanged it.
    is_activation = (by_phase == code_of(Category.ACTIVATION)) & ~_survives_step(blocks, course)
    claimed = _categories_by_claim(blocks, claims, workspaces, is_activation)
    unclaimed = code_of(Category.UNATTRIBUTED)
    return np.where(claimed != unclaimed, claimed, by_phase)


def _categories_by_claim(
    blocks: Blocks, claims: Claims, workspaces: Workspaces, mask: BoolArray
) -> UInt8Array:
    """The strongest claim on each allocation; UNATTRIBUTED if there is none. For allocations in
    `mask`, an exchange between ranks is not a claim.
    """
    strength = {category: rank for rank, category in enumerate(CLAIM_ORDER)}
    # Claims to categories that only phases decide rank below all others and have no effect.
    weakest = len(CLAIM_ORDER)
    best = np.full(len(blocks) + 1, weakest, dtype=np.int64)  # the last: addresses in no block
    ranks = np.array(
        [strength.get(category, weakest) for category in claims.category], dtype=np.int64
    )
    claimed = find_blocks(blocks, claims.position, claims.device, claims.address)
    np.minimum.at(best, claimed, ranks)
    scratch = find_blocks(blocks, workspaces.position, workspaces.device, workspaces.address)
    is_exchanged = np.array([library == _EXCHANGES for library in workspaces.library], dtype=bool)
    np.minimum.at(best, scratch[~is_exchanged], strength[Category.WORKSPACE])
    exchanged = scratch[is_exchanged]
    exchanged = exchanged[~np.append(mask, np.False_)[exchanged]]
    np.minimum.at(best, exchanged, strength[Category.COMMUNICATION])
    codes = np.array(
        [code_of(category) for category in (*CLAIM_ORDER, Category.UNATTRIBUTED)], dtype=np.uint8
    )
    return codes[best[:-1]]


def _categories_by_phase(blocks: Blocks, course: Course) -> UInt8Array:
    region = course.region_at(blocks.birth)
    phase, grad = course.phase[region], course.grad[region]
    outlives = blocks.death >= course.end[region]
    in_forward, in_loss = phase == Phase.FORWARD, phase == Phase.LOSS
    in_update = (
        (phase == Phase.BACKWARD) | (phase == Phase.AFTER_BACKWARD) | (phase == Phase.OPTIMIZER)
    )
    # Without gradients, "the loss" is everything between two forward passes; a block that lives
    # until the next one is its input.
    is_next_input = course.before_forward[region] & outlives & ~in_forward & ~(in_loss & grad)
    is_hidden = in_forward & ~grad & _sees_a_birth(blocks)
    category = np.full(len(blocks), code_of(Category.UNATTRIBUTED), dtype=np.uint8)
    category[in_forward | in_loss] = code_of(Category.TEMPORARY)
    # If a record ends within a pass (out of memory, for example), the pass did not get to use the
    # blocks that are still live.
    is_held_at_end = (course.end[region] == NEVER) & (blocks.death == blocks.num_events)
    category[(in_forward | in_loss) & (outlives | is_held_at_end)] = code_of(Category.ACTIVATION)
    category[is_hidden] = code_of(Category.ACTIVATION)
    category[in_update & ~_survives_step(blocks, course)] = code_of(Category.TEMPORARY)
    category[is_next_input] = code_of(Category.INPUT)
    return category


def _survives_step(blocks: Blocks, course: Course) -> BoolArray:
    """The allocations that live beyond the step in which they were born."""
    survives: BoolArray = blocks.death >= course.step_end[course.region_at(blocks.birth)]
    return survives


def _sees_a_birth(blocks: Blocks) -> BoolArray:
    """True if another allocation was born on the same device while this one was live."""
    result = np.zeros(len(blocks), dtype=np.bool_)
    for device in np.unique(blocks.device):
        rows = np.flatnonzero(blocks.device == device)
        births = blocks.birth[rows]
        following = np.searchsorted(births, births, side="right")
        next_birth = np.append(births, blocks.num_events)[following]
        result[rows] = next_birth < blocks.death[rows]
    return result
