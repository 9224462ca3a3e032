"""Why scores of attention are in memory: the program writes them out, or torch does because none of
its fused kernels takes the call.

Which kernels take what was asked of torch 2.15 (`torch._fused_sdp_choice`) on compute capabilities
7.5, 8.0, 8.9 and 9.0; tests/phantom/test_attention_choice.py asks again.
"""

from __future__ import annotations

import enum
import re

import numpy as np

from ullage.explain.owners.sites import OPERATOR, has_python_file, rank_frames
from ullage.explain.owners.statements import source_of, statement_at
from ullage.explain.rules.case import Case
from ullage.facts.gpus.catalog import load_catalog
from ullage.log.snapshot import Int64Array

_MATH = "_scaled_dot_product_attention_math"
_FUSED_CALL = re.compile(r"\bscaled_dot_product_attention\s*\(")
_TRANSFORMERS = "sdpa_attention_forward"
_MULTI_HEAD = "multi_head_attention_forward"
_BFLOAT16 = re.compile(r"\b(bfloat16|bf16)\b", re.IGNORECASE)
# The fused kernels take bfloat16 from here on.
_BFLOAT16_CAPABILITY = (8, 0)
_WATCHING = 5


class AttentionPath(enum.Enum):
    """Who writes the scores out."""

    OWN = "the program"
    WEIGHTS = "torch, as weights are asked for"
    MATH = "torch, as no fused kernel takes the call"
    UNKNOWN = "not known"


BFLOAT16_CHANGE = (
    'use float16 there, which they take: torch.autocast("cuda", torch.float16) with a '
    "torch.amp.GradScaler; or a GPU of compute capability 8.0 or higher"
)
MATH_CHANGE = (
    "make it a call that a fused kernel takes. None takes float64; bfloat16 below compute "
    "capability 8.0; a head width that is not a multiple of 8 in 16 bits below 8.0, or of 4 in "
    "float32 from 8.0 on; fewer heads of keys without enable_gqa=True; a last dimension that is "
    "not contiguous; nor what is under sdpa_kernel(SDPBackend.MATH)"
)
WEIGHTS_CHANGE = (
    "call nn.MultiheadAttention with need_weights=False, so that it uses "
    "scaled_dot_product_attention"
)
UNKNOWN_CHANGE = (
    "use torch.nn.functional.scaled_dot_product_attention (transformers: "
    'attn_implementation="sdpa"); where the line calls it already, ' + MATH_CHANGE
)


def find_path(case: Case, blocks: Int64Array) -> AttentionPath:
    """Who wrote out most bytes of some blocks."""
    stacks = case.device.replay.blocks.stack[blocks]
    sums: dict[AttentionPath, int] = {}
    for stack in np.unique(stacks).tolist():
        path = _path_of(case, stack)
        sums[path] = sums.get(path, 0) + int(case.size_bytes[blocks[stacks == stack]].sum())
    return max(sums, key=lambda path: sums[path], default=AttentionPath.UNKNOWN)


def _path_of(case: Case, stack: int) -> AttentionPath:
    stacks = case.report.snapshot.stacks
    frames = stacks.frames
    ranks = rank_frames(stacks)
    numbers = stacks.frame[stacks.start[stack] : stacks.start[stack + 1]].tolist()
    for number in numbers:
        if not has_python_file(frames.file[number]):
            operator = OPERATOR.search(frames.function[number])
            if operator is not None and operator[1] == _MATH:
                return AttentionPath.MATH
    inner = next(
        (
            number
            for number in numbers
            if has_python_file(frames.file[number]) and ranks[number] != _WATCHING
        ),
        None,
    )
    if inner is None:
        return AttentionPath.UNKNOWN
    return _path_at(frames.file[inner], frames.line[inner], frames.function[inner])


def _path_at(file: str, line: int, function: str) -> AttentionPath:
    """By the innermost line of Python: torch's function is not a Python of its own."""
    if function == _TRANSFORMERS:
        return AttentionPath.MATH
    statement = statement_at(file, line)
    if _FUSED_CALL.search(statement):
        return AttentionPath.MATH
    if function == _MULTI_HEAD and statement:
        return AttentionPath.WEIGHTS
    return AttentionPath.OWN if statement else AttentionPath.UNKNOWN


def explain_math(case: Case) -> tuple[str, str]:
    """Why torch took the math path, and what to do."""
    capability = _capability_of(case)
    if capability is not None and capability < _BFLOAT16_CAPABILITY and _names_bfloat16(case):
        number = ".".join(map(str, capability))
        why = (
            f"the call is scaled_dot_product_attention, of bfloat16 on compute capability {number}:"
            " no fused kernel takes it, and torch writes the scores out"
        )
        return why, BFLOAT16_CHANGE
    why = (
        "the call is scaled_dot_product_attention, and no fused kernel took it: torch chose the "
        "math path, which writes the scores out"
    )
    return why, MATH_CHANGE


def _capability_of(case: Case) -> tuple[int, int] | None:
    """The capability of the recorded device; None where the file does not name it."""
    name = None if case.device.totals is None else case.device.totals.name
    return next((gpu.compute_capability for gpu in load_catalog() if gpu.name == name), None)


def _names_bfloat16(case: Case) -> bool:
    """True if the program's own files, or its arguments, name it."""
    stacks, record = case.report.snapshot.stacks, case.report.record
    ranks = rank_frames(stacks)
    own = {file for file, rank in zip(stacks.frames.file, ranks, strict=True) if rank == 0}
    texts = [*(record.argv if record is not None else ()), *map(source_of, sorted(own))]
    return any(_BFLOAT16.search(text) for text in texts)
