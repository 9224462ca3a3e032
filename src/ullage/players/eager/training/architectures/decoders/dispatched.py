"""Experts that ranks have divided among them: each token travels to the ranks of the experts that
it chooses, and back (expert parallelism).

As in transformers' AllToAllEP, around grouped_mm_experts_forward. Each expert is taken to be
chosen equally often, so that a rank gets as many rows as it sends. The experts are a group of FSDP2
of their own, shared out by the ranks that hold the same ones. Source: transformers 5.23,
distributed/expert_parallel.py and integrations/moe.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ullage.players.eager.training.architectures.decoders.experts import Experts
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.autograd import connect, record
from ullage.players.eager.training.eager.routing import place_rows, sum_second, take_rows
from ullage.players.eager.training.eager.tensor import INT64, Tensor

if TYPE_CHECKING:
    from ullage.facts.families.blocks import Mlp
    from ullage.players.eager.training.architectures.decoders.decoder import Parts


def make_experts(parts: Parts, sizes: Mlp) -> Experts:
    """All experts, or this rank's.

    Raises:
        SpecError: the number of experts is not a multiple of the number of ranks.
    """
    ranks, count = parts.recipe.layout.expert, sizes.experts
    if ranks == 1:
        return Experts(parts, count, sizes.width)
    if count % ranks:
        raise parts.config.wrong(
            "num_local_experts" if parts.config.has("num_local_experts") else "num_experts",
            f"found {count}, which expert {ranks} does not divide; take a divisor of it",
        )
    return DispatchedExperts(parts, count // ranks, sizes.width)


class DispatchedExperts(Experts):
    """This rank's experts."""

    def __init__(self, parts: Parts, count: int, inner: int) -> None:
        with parts.arena.sharding.shared_by(parts.recipe.layout.num_expert_copies):
            super().__init__(parts, count, inner)

    def __call__(self, x: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
        sharding = x.arena.sharding
        group = [tensor for tensor, _ in self.parameters()]
        entered = _passage(x, lambda: sharding.reduce(group))
        sharding.gather(group)
        out = F.to(self._dispatch(entered, weights, numbers), x.dtype)
        sharding.free(group)
        return _passage(out, lambda: sharding.regather(group))

    def _dispatch(self, x: Tensor, weights: Tensor, numbers: Tensor) -> Tensor:
        """To the experts' ranks, through the experts, and back."""
        order = numbers.like((numbers.numel,))
        arrived = _exchange(take_rows(x, order.like()))
        products = self._run(arrived)
        rows = place_rows(_exchange(products), order)
        rows = F.view(rows, (*numbers.shape, rows.shape[-1]))
        return sum_second(F.mul(rows, F.view(weights, (*weights.shape, 1))))

    def _run(self, x: Tensor) -> Tensor:
        """The experts on rows that have chosen one each."""
        # Rows that belong to none of this rank's experts are masked, though there are none.
        count = (x.shape[0],)
        order = x.like(count, INT64)
        rows = F.scale_in_place(take_rows(x, order))
        inner = self.gate(_mask(self.into(rows, order)))
        out = _mask(self.back(inner, order))
        weighed = F.mul(out, x.like((*count, 1)))
        weighed = take_rows(weighed, order.like())
        return sum_second(F.view(weighed, (*count, 1, weighed.shape[-1])))


def _exchange(x: Tensor) -> Tensor:
    """all_to_all_single: as many rows arrive as leave."""
    return connect(x.like(), record((x,), lambda gradient, _: [gradient.like()]))


_mask = F.scale  # masked_fill: a new tensor, whose gradient is another


def _passage(x: Tensor, when_passed: Callable[[], None]) -> Tensor:
    def rule(gradient: Tensor, _: object) -> list[Tensor]:
        when_passed()
        return [gradient]

    return connect(x.alias(is_dense=x.is_dense), record((x,), rule))
