"""Routers of experts: assumes which experts the tokens choose.

The choice is a topk over the experts' scores, in the forward of a module with that many experts
(experts.py). It gets values by the assumption, which are followed like any other small values, so
its counts, masks and indices agree with one another. If there are too many tokens to follow, or the
model drops some, tensors with the shapes of counts and masks get sizes by the same assumption.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType, ModuleType
from typing import Any

from ullage.players.inside import library
from ullage.players.inside.values.assume import Assumed, Experts
from ullage.players.inside.values.cpu_ops import Beside

# Decides whether a topk belongs to a router: it runs in the forward of a module with experts.

_MAX_HOLDERS = 3
"""The number of modules to check: the router, the layer of experts, and a wrapper between them."""


def is_routing(torch: ModuleType, num_experts: int) -> bool:
    """True if the current call is within the forward of a module with this many experts."""
    if library.current_scope() < 0:
        return False
    holders = itertools.islice(_running_modules(torch), _MAX_HOLDERS)
    return any(_has_experts(torch, holder, num_experts) for holder in holders)


def _running_modules(torch: ModuleType) -> Iterator[Any]:
    """The modules whose methods are running, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    last = None
    while frame is not None:
        owner = frame.f_locals.get("self")
        if owner is not last and isinstance(owner, torch.nn.Module):
            yield owner
            last = owner
        frame = frame.f_back


def _has_experts(torch: ModuleType, holder: Any, num_experts: int) -> bool:
    for module in holder.modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            if _is_part(torch, len(module), num_experts):
                return True
        elif not isinstance(module, torch.nn.modules.conv._ConvNd):
            for weight in module.parameters(recurse=False):
                if weight.dim() > 2 and _is_part(torch, weight.size(0), num_experts):
                    return True
    return False


def _is_part(torch: ModuleType, count: int, num_experts: int) -> bool:
    """True if `count` is the number of experts, or that of one rank in a distributed job."""
    distributed = torch.distributed
    is_job = distributed.is_available() and distributed.is_initialized()
    return count == num_experts or (is_job and count > 1 and num_experts % count == 0)


_MAX_EXPERTS = 1024
_WORDS = {
    Experts.WORST: "worst case, all tokens to the same",
    Experts.BALANCED: "balanced, as many tokens to each",
}


@dataclass(frozen=True, slots=True)
class Routing:
    """Each token goes to `num_chosen` experts; an expert takes at most `capacity` tokens."""

    num_tokens: int
    num_experts: int
    num_chosen: int
    capacity: int
    is_balanced: bool

    def counts(self) -> list[int]:
        """The number of tokens of each expert."""
        tokens, experts, chosen = self.num_tokens, self.num_experts, self.num_chosen
        if self.is_balanced:
            spread = [-((number - tokens * chosen) // experts) for number in range(experts)]
        else:
            spread = [tokens] * chosen + [0] * (experts - chosen)
        return [min(count, self.capacity) for count in spread]

    def is_counted_of(self, num_elements: int) -> bool:
        """True if a tensor of this size can describe the choice: the numbers of the experts, or a
        flag for each token and expert, or for each choice and expert.
        """
        flags = self.num_tokens * self.num_experts
        numbers = self.num_tokens * self.num_chosen
        return num_elements in (numbers, flags, flags * self.num_chosen)


class Routers:
    """Chooses experts. One instance per process.

    Attributes:
        words: the text of the assumption in the report.
    """

    def __init__(
        self,
        torch: ModuleType,
        beside: Beside,
        assumed: Assumed,
        note: Callable[[str, int, str], None],
    ) -> None:
        """`note(what, num_bytes, assumption)` adds an assumption, with its line, to the report."""
        self._torch = torch
        self._beside = beside
        self._is_balanced = assumed.experts is Experts.BALANCED
        self.words = _WORDS[assumed.experts]
        self._note = note
        self._most: dict[tuple[int, int], int] = {}
        self._last: dict[int, Routing] = {}  # by the number of experts

    def choose(self, args: Any, result: Any) -> bool:
        """Called after topk(scores, k, dim): gives values to its indices if they are experts;
        False: they are not.
        """
        scores, k = args[0], int(args[1])
        dim = args[2] if len(args) > 2 else -1
        num_experts = scores.size(-1) if scores.dim() > 1 else 0
        if dim == 0 and scores.dim() == 2:
            return self._limit(*scores.size(), capacity=k, indices=result[1])
        is_last = dim in (-1, scores.dim() - 1)
        if not (1 <= k < num_experts <= _MAX_EXPERTS and is_last and scores.is_floating_point()):
            return False
        tokens = math.prod(scores.size()[:-1])
        indices = result[1]
        if tokens < 2 or not self._beside.has_address(indices):
            return False
        if not is_routing(self._torch, num_experts):
            return False
        routing = Routing(tokens, num_experts, k, tokens, self._is_balanced)
        self._last[num_experts] = routing
        self._most[2, tokens * num_experts] = sum(routing.counts())
        # A token chooses an expert once. Some models add an expert for missing tokens.
        self._most[2, tokens * k] = -(-tokens * k // num_experts) if self._is_balanced else tokens
        for number in (num_experts, num_experts + 1):
            self._most[1, number] = num_experts if self._is_balanced else k
        self._note("experts that a router chooses", 8 * tokens * k, self.words)
        if self._beside.is_small(indices):
            self._beside.store(indices, self._chosen(routing).reshape(indices.size()))
        return True

    def _chosen(self, routing: Routing) -> Any:
        """The experts of each token: (tokens, chosen)."""
        tokens, k = routing.num_tokens, routing.num_chosen
        numbers = self._torch.arange(tokens * k if self._is_balanced else k, device="cpu")
        return (numbers % routing.num_experts).reshape(-1, k).expand(tokens, k)

    def most(self, mask: Any) -> int | None:
        """The number of tokens of one expert if the mask has (k, tokens) choices, or the number of
        experts with tokens if there are too many choices to follow; None: it is neither.
        """
        return self._most.get((mask.dim(), mask.numel()))

    def _limit(self, num_tokens: int, num_experts: int, *, capacity: int, indices: Any) -> bool:
        """Handles experts that keep at most `capacity` of the tokens that chose them: the indices
        list these tokens before others. False: it is not a router's choice.
        """
        last = self._last.get(num_experts)
        if last is None or last.num_tokens != num_tokens:
            return False
        self._last[num_experts] = limited = replace(last, capacity=capacity)
        self._most[2, num_tokens * num_experts] = sum(limited.counts())
        if self._beside.is_small(indices):
            goes = self._torch.zeros(num_tokens, num_experts, dtype=self._torch.int8, device="cpu")
            goes.scatter_(1, self._chosen(last), 1)
            order = goes.sort(dim=0, descending=True, stable=True).indices
            self._beside.store(indices, order[:capacity])
        return True

    def count(self, args: Any, result: Any) -> None:
        """Called after a sum or histogram of unknown values: gives it values if it counts the
        tokens of each expert.
        """
        routing = self._last.get(result.numel()) if result.dim() == 1 else None
        if routing is None or not self._beside.is_small(result):
            return
        most = max(tensor.numel() for tensor in self._beside.tensors(args))
        if routing.is_counted_of(most):
            counts = self._torch.tensor(routing.counts(), dtype=result.dtype, device="cpu")
            self._beside.store(result, counts)
