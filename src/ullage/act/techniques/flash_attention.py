"""Attention by torch's fused kernels, for models of transformers or timm that compute it eagerly.

Eager attention saves its weights (batch x heads x length x length) for backward, often twice. The
fused kernels never store the whole matrix.

Many models of transformers have an eager attention of their own: with capped scores, sinks, or
other scales. Whether the fused kernels compute the same as a module is tested at the first call of
the module, with random numbers in float64 on the CPU and with the module's number and width of
heads. Dropout on attention weights is refused, because the kernels would drop other weights.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

_LENGTH = 5
# transformers computes the softmax in float32, whatever the dtype of its input.
_TOLERANCE = 1e-5
# Tensors that repeat the mask, for kernels that handle packed sequences.
_OF_PLACES = {"position_ids", "cache_position"}


def _apply(target: Target, _: Action) -> None:
    num_changed = _set_transformers(target)
    for module in target.model.modules():
        is_of_timm = type(module).__module__.startswith("timm.")
        if not is_of_timm or vars(module).get("fused_attn") is not False:
            continue
        if getattr(getattr(module, "attn_drop", None), "p", 0):
            _refuse_drops()
        target.changes.set(module, "fused_attn", value=True)
        num_changed += 1
    if not num_changed:
        FLASH_ATTENTION.refuse("no module of transformers or timm in it writes its attention out")


def _set_transformers(target: Target) -> int:
    changed: set[int] = set()
    for module in target.model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) != "eager" or id(config) in changed:
            continue
        if not getattr(module, "_supports_sdpa", False):
            continue
        if getattr(config, "output_attentions", False):
            _refuse_weights()
        changed.add(id(config))
        target.changes.on_undo(setattr, config, "_attn_implementation", "eager")
        config._attn_implementation = "sdpa"
    if changed:
        _watch(target, changed)
    return len(changed)


def _watch(target: Target, configs: set[int]) -> None:
    """Compares each module with one of these configurations at its first call."""
    interfaces = getattr(
        sys.modules["transformers.modeling_utils"], "ALL_ATTENTION_FUNCTIONS", None
    )
    if interfaces is None:
        FLASH_ATTENTION.refuse("this version of transformers has no attention functions to compare")
    fused = interfaces["sdpa"]
    compared: set[Any] = set()

    @functools.wraps(fused)
    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **keywords: Any) -> Any:
        if id(getattr(module, "config", None)) in configs:
            if keywords.get("dropout"):
                _refuse_drops()
            if module not in compared:
                _compare(fused, module, (query, key, value), mask, keywords)
                compared.add(module)
        return fused(module, query, key, value, mask, **keywords)

    def run(forward: Any, *arguments: Any, **keywords: Any) -> Any:
        if keywords.get("output_attentions"):
            _refuse_weights()
        return forward(*arguments, **keywords)

    target.changes.set_item(interfaces, "sdpa", attend)
    target.wrap_forward("", run)


def _compare(
    fused: Any, module: Any, shapes: tuple[Any, ...], mask: Any, keywords: dict[str, Any]
) -> None:
    """Raises PlanError if the fused kernels do not compute the same as a module."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    kind = type(module)
    written_out = getattr(sys.modules[kind.__module__], "eager_attention_forward", None)
    tensors = {name for name, argument in keywords.items() if isinstance(argument, torch.Tensor)}
    if written_out is None or tensors - _OF_PLACES or torch.compiler.is_compiling():
        FLASH_ATTENTION.refuse(
            f"the attention of {kind.__name__} cannot be compared with the fused kernels"
        )
    numbers = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(
            2, shape.shape[1], _LENGTH, shape.shape[3], dtype=torch.float64, generator=numbers
        )
        for shape in shapes
    ]
    later = torch.full((_LENGTH, _LENGTH), torch.finfo(torch.float64).min, dtype=torch.float64)
    is_causal = mask is not None or getattr(module, "is_causal", True)
    causal_mask = later.triu(1)[None, None] if is_causal else None
    settings = {name: argument for name, argument in keywords.items() if name not in tensors}
    try:
        # A selective checkpoint around the call would keep these results, too, and when it runs the
        # module again, without the comparison, take them for the module's.
        with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False):
            ours = fused(module, *inputs, None if mask is None else causal_mask, **settings)[0]
            theirs = written_out(module, *inputs, causal_mask, **settings)[0]
        is_same = bool((ours - theirs).abs().max() <= _TOLERANCE)
    except (RuntimeError, ValueError, TypeError):
        is_same = False
    if not is_same:
        FLASH_ATTENTION.refuse(f"the fused kernels do not compute what a {kind.__name__} does")


def _refuse_drops() -> None:
    FLASH_ATTENTION.refuse(
        "it has dropout on attention weights, and the kernels would drop other weights"
    )


def _refuse_weights() -> None:
    FLASH_ATTENTION.refuse("the model returns attention weights (output_attentions)")


FLASH_ATTENTION = Technique(
    name="flash_attention",
    does="computes attention with fused kernels (SDPA), which never store all attention weights",
    precondition="attention is a softmax of scaled dot products with a mask, and nothing else",
    proof=(
        "each module's eager attention is compared with the kernels on random numbers in float64; "
        "dropout on weights, and returned weights, are refused"
    ),
    semantics=Semantics.SAME,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
    apply=_apply,
    reorders=True,
)
