"""Routers of experts: whom tokens are sent to, where no kernel has computed it.

The choice is a topk over the experts' scores. It gets values, as the assumption has them, that are
followed like any other small values: counts, masks and indices made of it fit one another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.record.assume import Assumed, Experts
from ullage.record.beside import Beside

_MAX_EXPERTS = 1024
_WORDS = {
    Experts.WORST: "worst case, all tokens to the same",
    Experts.BALANCED: "balanced, as many tokens to each",
}


class Routers:
    """Chooses experts. One for the process.

    Attributes:
        words: the assumption, as it is listed.
    """

    def __init__(
        self,
        torch: ModuleType,
        beside: Beside,
        assumed: Assumed,
        note: Callable[[str, int, str], None],
    ) -> None:
        """`note(what, num_bytes, assumption)` lists an assumption with its place."""
        self._torch = torch
        self._beside = beside
        self._is_balanced = assumed.experts is Experts.BALANCED
        self.words = _WORDS[assumed.experts]
        self._note = note
        self._most: dict[tuple[int, int], int] = {}

    def choose(self, args: Any, result: Any) -> None:
        """After topk(scores, k, dim): gives its indices values, if they are of experts."""
        scores, k = args[0], int(args[1])
        dim = args[2] if len(args) > 2 else -1
        num_experts = scores.size(-1) if scores.dim() > 1 else 0
        is_last = dim in (-1, scores.dim() - 1)
        if not (1 <= k < num_experts <= _MAX_EXPERTS and is_last and scores.is_floating_point()):
            return
        tokens = math.prod(scores.size()[:-1])
        indices = result[1]
        if tokens < 2 or not self._beside.has_address(indices):
            return
        # A token chooses an expert once. Some models add an expert for tokens that are not there.
        self._most[2, tokens * k] = -(-tokens * k // num_experts) if self._is_balanced else tokens
        for number in (num_experts, num_experts + 1):
            self._most[1, number] = num_experts if self._is_balanced else k
        self._note("experts that a router chooses", 8 * tokens * k, self.words)
        if self._beside.is_small(indices):
            numbers = self._torch.arange(tokens * k if self._is_balanced else k, device="cpu")
            chosen = (numbers % num_experts).reshape(-1, k).expand(tokens, k)
            self._beside.store(indices, chosen.reshape(indices.size()))

    def most(self, mask: Any) -> int | None:
        """How many tokens one expert gets by a mask of (k, tokens) choices, or how many experts get
        any, where all the choices are too many to be followed; None: it is neither.
        """
        return self._most.get((mask.dim(), mask.numel()))
