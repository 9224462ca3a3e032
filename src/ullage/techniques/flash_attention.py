"""Attention by torch's fused kernels, where a model of transformers or timm writes it out.

Written out, the weights of attention (batch x heads x length x length) are kept for backward, often
twice; the fused kernels never have them as a whole.

transformers writes attention out in as many ways as it has models: with a cap on its scores, sinks,
scales of its own. Whether a module's way is what the fused kernels compute is tried at its first
call, with random numbers in float64 on the CPU, as many heads and as wide as it has them. Where
weights of attention are dropped at random the kernels would drop others, and it is refused.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from ullage.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.techniques.applying.target import Target

_LENGTH = 5
# transformers takes the softmax in float32, whatever it is given.
_TOLERANCE = 1e-5
# Tensors that tell kernels for packed sequences what the mask says.
_OF_PLACES = ("position_ids", "cache_position")


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
    """Has each module compared at its first call whose configuration is one of these."""
    interfaces = getattr(
        sys.modules["transformers.modeling_utils"], "ALL_ATTENTION_FUNCTIONS", None
    )
    if interfaces is None:
        FLASH_ATTENTION.refuse("this transformers has no functions of attention to compare")
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
    """Raises PlanError where the fused kernels compute something else than a module does."""
    import torch

    kind = type(module)
    written_out = getattr(sys.modules[kind.__module__], "eager_attention_forward", None)
    strange = [
        name
        for name, argument in keywords.items()
        if isinstance(argument, torch.Tensor) and name not in _OF_PLACES
    ]
    if written_out is None or strange or torch.compiler.is_compiling():
        FLASH_ATTENTION.refuse(f"what a {kind.__name__} computes cannot be compared here")
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
    settings = {
        name: argument
        for name, argument in keywords.items()
        if not isinstance(argument, torch.Tensor)
    }
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            ours = fused(module, *inputs, None if mask is None else causal_mask, **settings)[0]
            theirs = written_out(module, *inputs, causal_mask, **settings)[0]
        is_same = bool((ours - theirs).abs().max() <= _TOLERANCE)
    except (RuntimeError, ValueError, TypeError):
        is_same = False
    if not is_same:
        FLASH_ATTENTION.refuse(f"the fused kernels do not compute what a {kind.__name__} does")


def _refuse_drops() -> None:
    FLASH_ATTENTION.refuse("it drops weights of attention, and the kernels would drop others")


def _refuse_weights() -> None:
    FLASH_ATTENTION.refuse("the model is to return the weights of attention (output_attentions)")


FLASH_ATTENTION = Technique(
    name="flash_attention",
    does="computes attention by fused kernels (SDPA), which never hold its weights as a whole",
    precondition="attention is a softmax of scaled products, with a mask and nothing else",
    proof=(
        "each module's own way is compared with the kernels on random numbers in float64; "
        "dropped or returned weights are refused"
    ),
    semantics=Semantics.SAME,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
    apply=_apply,
    reorders=True,
)
