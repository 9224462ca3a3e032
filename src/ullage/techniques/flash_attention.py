"""Attention by torch's fused kernels, where a model of transformers or timm writes it out.

Written out, the weights of attention (batch x heads x length x length) are kept for backward, often
twice; the fused kernels never have them as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.techniques.target import Target


def _apply(target: Target, _: Action) -> None:
    num_changed = _set_transformers(target)
    for module in target.model.modules():
        # timm's Attention and its kin.
        if vars(module).get("fused_attn") is False:
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
            FLASH_ATTENTION.refuse(
                "the model is to return the weights of attention (output_attentions)"
            )
        changed.add(id(config))
        target.changes.on_undo(setattr, config, "_attn_implementation", "eager")
        config._attn_implementation = "sdpa"
    return len(changed)


FLASH_ATTENTION = Technique(
    name="flash_attention",
    does="computes attention by fused kernels (SDPA), which never hold its weights as a whole",
    semantics=Semantics.SAME,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
    apply=_apply,
    reorders=True,
)
