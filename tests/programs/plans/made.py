"""What a program of same_training.py is made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Made:
    """A model, what makes a batch, and its loss; the modules that a plan would name.

    Attributes:
        blocks, mlps, chains: the blocks, their parts that are feed-forward, and sequences of parts.
        rate: of the optimizer.
        more: what else of a model is to be the same after a step.
    """

    model: nn.Module
    batch: Callable[[], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    blocks: tuple[str, ...] = ()
    mlps: tuple[str, ...] = ()
    chains: tuple[str, ...] = ()
    rate: float = 1e-3
    more: Callable[[nn.Module], Sequence[torch.Tensor]] = lambda _: ()
