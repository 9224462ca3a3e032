"""Finds the head of a model: the linear layer that computes its logits."""

from __future__ import annotations

from typing import Any


def find_head(model: Any) -> Any:
    """The layer that computes logits: the one that a transformers model names, else the last Linear
    that is as wide as an embedding, else the last Linear; None if there is none.
    """
    from torch import nn

    embeddings: Any = getattr(model, "get_output_embeddings", lambda: None)()
    if embeddings is not None:
        return embeddings if type(embeddings) is nn.Linear else None
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    sizes = {
        module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)
    }
    wide = [linear for linear in linears if linear.out_features in sizes]
    return (wide or linears or [None])[-1]
