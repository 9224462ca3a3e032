"""Mixtures of experts as transformers runs them by default: all experts' matrices in one tensor,
tokens sorted by expert, one grouped product for all (grouped_mm_experts_forward).

How tokens are spread over the experts does not change the memory: each is there as often as it
chooses an expert.
"""

from __future__ import annotations

from typing import Final

from ullage.players.eager.training.architectures.decoders.decoder import Parts
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.module import Module, parameter
from ullage.players.eager.training.eager.routing import (
    grouped_product,
    highest,
    sum_groups,
    take_rows,
)
from ullage.players.eager.training.eager.tensor import FLOAT32, Tensor

GATED: Final = ("gate_proj", "up_proj", "down_proj")


class Router(Module):
    """MixtralTopKRouter: the softmax of all experts' scores, of which the highest count.

    Attributes:
        casts: weights are cast back to the scores' dtype.
    """

    def __init__(self, parts: Parts, count: int, chosen: int, *, casts: bool = False) -> None:
        hidden = parts.config.number("hidden_size")
        if not 1 <= chosen <= count:
            raise parts.config.wrong(
                "num_experts_per_tok", f"found {chosen}, expected 1 to {count}, the experts"
            )
        self.chosen = chosen
        self.casts = casts
        self.weight = parameter(parts.arena, count, hidden, dtype=parts.dtype)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the experts of each token, (tokens, chosen) each."""
        scores = F.linear(F.view(x, x.shape), self.tensor("weight"))
        weights, numbers = highest(F.softmax(scores, FLOAT32), self.chosen)
        return F.to(weights, scores.dtype) if self.casts else weights, numbers


class Experts(Module):
    """MixtralExperts: gate and what it gates in one tensor, and the way back in another."""

    def __init__(self, parts: Parts, count: int, inner: int) -> None:
        hidden = parts.config.number("hidden_size")
        self.inner = inner
        self.gate_up_proj = parameter(parts.arena, count, 2 * inner, hidden, dtype=parts.dtype)
        self.down_proj = parameter(parts.arena, count, hidden, inner, dtype=parts.dtype)

    def into(self, x: Tensor, numbers: Tensor) -> Tensor:
        """Rows by expert, to (rows, 2 * inner)."""
        del numbers
        return grouped_product(x, self.tensor("gate_up_proj"))

    def gate(self, x: Tensor) -> Tensor:
        """(rows, 2 * inner) to (rows, inner)."""
        gate, up = F.split(x, (self.inner, self.inner))
        return F.mul(F.elementwise(gate), up)

    def back(self, x: Tensor, numbers: Tensor) -> Tensor:
        """(rows, inner) to (rows, hidden)."""
        del numbers
        return grouped_product(x, self.tensor("down_proj"))

    def __call__(self, x: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
        count = numbers.shape[-1]
        flat = numbers.alias((numbers.numel,))
        by_expert, order = flat.like(), flat.like()
        chosen = take_rows(x, order.like())
        sorted_weights = take_rows(F.view(weights, (weights.numel,)), order)
        out = self.back(self.gate(self.into(chosen, by_expert)), by_expert)
        out = F.mul(out, F.view(sorted_weights, (*sorted_weights.shape, 1)))
        out = take_rows(out, order.like())
        total = sum_groups(out, count)
        return F.to(total, x.dtype)


class Mixture(Module):
    """MixtralSparseMoeBlock."""

    def __init__(self, gate: Module, experts: Experts, names: tuple[str, ...] = ()) -> None:
        """names: peft 0.21's of gate, up and down (_MOE_TARGET_MODULE_MAPPING), if it has any."""
        if names:
            gate.adapted = {"weight": ("gate",)}
            experts.adapted = {"gate_up_proj": names[:2], "down_proj": names[2:]}
        self.gate = gate
        self.experts = experts

    def __call__(self, x: Tensor) -> Tensor:
        shape = x.shape
        flat = F.view(x, (shape[0] * shape[1], shape[2]))
        weights, numbers = self.gate(flat)
        return F.view(self.experts(flat, weights, numbers), shape)
