"""Rules about attention that is written out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ullage.explain.rules.attention_path import (
    UNKNOWN_CHANGE,
    WEIGHTS_CHANGE,
    AttentionPath,
    explain_math,
    find_path,
)
from ullage.explain.rules.case import MIN_BYTES, Case
from ullage.explain.rules.rule import Found, Kind, Rule, found_at
from ullage.ground.units import format_bytes
from ullage.log.model import Category
from ullage.log.snapshot import Int64Array

_ATTENTION = re.compile(r"(^|_)(att|attn|attention|attend|self_attn|sdpa)($|_)|dot_product",
                        re.IGNORECASE)  # fmt: skip
# Who makes a mask of attention; predict_masks, random_masking and apply_mask are of other masks.
_MASK = re.compile(
    r"(^|_)(causal|alibi|position_bias|subsequent|look_ahead)($|_)|^masks?$|"
    r"(^|_)(make|create|build|generate|gen|get|prepare|expand|update|compute|attn|attention|sdpa|"
    r"eager|std|pad|padding|extended)_(\w+_)?masks?($|_)",
    re.IGNORECASE,
)
_MATRIX_FRAC = 0.2
_MASK_FRAC = 0.08
# Queries, keys and values are as large as the hidden states; a matrix of scores is much larger.
_TIMES_LARGER = 3


def _find_matrix(case: Case) -> Iterator[Found]:
    blocks = case.device.replay.blocks
    in_attention = case.calls(_ATTENTION) & ~case.calls(_MASK)
    of_pass = case.is_of(Category.ACTIVATION, Category.TEMPORARY, Category.UNATTRIBUTED)
    has_stack = case.report.sites.of_stack[blocks.stack] > 0
    others = of_pass & ~in_attention & case.is_live & has_stack
    usual = np.percentile(case.size_bytes[others], 75) if others.any() else 0
    matrix = in_attention & of_pass & (case.size_bytes >= max(_TIMES_LARGER * usual, MIN_BYTES))
    size = case.sum(matrix & case.is_live)
    if not case.is_worth(size, _MATRIX_FRAC):
        return
    numbers = np.flatnonzero(matrix & case.is_live)
    largest = int(case.size_bytes[numbers].max())
    why, change = _explain_path(case, numbers)
    sizes = (
        f"{len(numbers)} tensors of up to {format_bytes(largest)} in attention, others of the pass "
        f"have {format_bytes(int(usual))}"
    )
    yield found_at(
        case,
        numbers,
        f"attention scores are written out: {case.share(size)}",
        case.gain(matrix),
        case.relief(matrix, is_whole=False),
        evidence=(sizes, *why),
        change=change,
        is_guess=not case.is_known,
    )


def _explain_path(case: Case, numbers: Int64Array) -> tuple[tuple[str, ...], str]:
    """Why scores are written out, and the change where it is not that of the rule."""
    path = find_path(case, numbers)
    if path is AttentionPath.MATH:
        why, change = explain_math(case)
        return (why,), change
    if path is AttentionPath.WEIGHTS:
        return ("nn.MultiheadAttention writes them out to give the weights back",), WEIGHTS_CHANGE
    return (), UNKNOWN_CHANGE if path is AttentionPath.UNKNOWN else ""


def _find_mask(case: Case) -> Iterator[Found]:
    mask = case.calls(_MASK) & case.may_be("bool", "float32", "bfloat16", "float16")
    mask &= ~case.is_of(Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    size = case.sum(mask & case.is_live)
    if not case.is_worth(size, _MASK_FRAC):
        return
    numbers = np.flatnonzero(mask & case.is_live)
    what, relief = "attention masks are materialised", case.relief(mask, is_whole=False)
    what = f"{what}: {case.share(size)}"
    yield found_at(case, numbers, what, case.gain(mask), relief, is_guess=not case.is_known)


RULES = (
    Rule(
        code="UL123",
        title="attention scores are written out",
        kind=Kind.CHOICE,
        meaning="softmax(q @ k.T) makes tensors of batch x heads x length x length, and backward "
        "keeps several of them. Fused attention never makes them, where one of its kernels takes "
        "the call; else scaled_dot_product_attention writes them out itself.",
        evidence="Tensors made in functions named after attention are three times as large as "
        "others of the pass, and 20 % of the peak or more.",
        cost="nothing; it is faster, too",
        change="use torch.nn.functional.scaled_dot_product_attention (transformers: "
        'attn_implementation="sdpa")',
        find=_find_matrix,
    ),
    Rule(
        code="UL124",
        title="an attention mask is materialised",
        kind=Kind.CHOICE,
        meaning="A mask of length x length, more so one for each head or each sample, is memory "
        "that says what one flag says.",
        evidence="Tensors made in functions named after masks are 8 % of the peak or more.",
        cost="nothing",
        change="pass is_causal=True, broadcast the mask over heads and batch (expand, not repeat), "
        "or use torch.nn.attention.flex_attention",
        find=_find_mask,
    ),
)
