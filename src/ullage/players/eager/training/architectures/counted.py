"""A model of which only the number of parameters is known."""

from __future__ import annotations

from ullage.facts.families.config import Config
from ullage.players.eager.training.architectures.model import Model, parameter_dtype
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.autograd import connect, record
from ullage.players.eager.training.eager.module import parameter
from ullage.players.eager.training.eager.tensor import Tensor
from ullage.players.eager.training.recipe import Recipe


class Counted(Model):
    """Parameters, their gradients and states are counted; activations cannot be."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        count = config.number("num_parameters", least=1)
        self.weight = parameter(arena, count, dtype=parameter_dtype(recipe))

    def inputs(self, arena: Arena, recipe: Recipe) -> tuple[Tensor, ...]:
        return ()

    def __call__(self, *inputs: Tensor) -> Tensor:
        shape = self.weight.shape
        node = record((self.weight,), lambda gradient, _: [gradient.like(shape)])
        return connect(self.weight.like(()), node)
