"""The interface of every model here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.module import Module, Stack
from ullage.players.eager.training.eager.tensor import INT64, DType, Tensor, empty, find_dtype
from ullage.players.eager.training.recipe import PRECISIONS, Recipe


class Model(Module):
    """A model with its loss.

    Attributes:
        stacks: the layers that activation checkpointing can be turned on for.
        is_decoder: a language model whose loss and masks a recipe can choose.
    """

    stacks: tuple[Stack, ...] = ()
    is_decoder: ClassVar[bool] = False

    @property
    def unseen(self) -> Sequence[Module]:
        """The modules that the loss does not depend on: their parameters get no gradient."""
        return ()

    def inputs(self, arena: Arena, recipe: Recipe) -> tuple[Tensor, ...]:
        """The tensors that a training step moves to the device."""
        raise NotImplementedError

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The loss."""
        raise NotImplementedError


class LanguageModel(Model):
    """A model whose tokens are its labels, too."""

    def inputs(self, arena: Arena, recipe: Recipe) -> tuple[Tensor, ...]:
        tokens = ids(arena, recipe)
        return tokens, tokens


def parameter_dtype(recipe: Recipe) -> DType:
    """The dtype in which parameters are kept."""
    return find_dtype(PRECISIONS[recipe.precision][0])


def ids(arena: Arena, recipe: Recipe, longest: int | None = None) -> Tensor:
    """Token numbers: (batch, length) int64.

    longest: how many the model has positions for.
    """
    if recipe.length is None:
        raise SpecError("length: not given, and this model reads tokens; say how many a sample has")
    if longest is not None and recipe.length > longest:
        raise SpecError(
            f"length: found {recipe.length}, expected at most {longest}, the tokens that the model "
            "has positions for"
        )
    return empty(arena, (recipe.batch, recipe.length), INT64, Category.INPUT)


def images(arena: Arena, recipe: Recipe, channels: int = 3) -> Tensor:
    """Square pictures: (batch, channels, side, side)."""
    if recipe.image is None:
        raise SpecError(
            "image: not given, and this model sees images; say how many pixels a side has"
        )
    shape = (recipe.batch, channels, recipe.image, recipe.image)
    return empty(arena, shape, parameter_dtype(recipe), Category.INPUT)


def with_side(recipe: Recipe, side: int) -> Recipe:
    """The recipe, for a model that sees pictures of one size only."""
    if recipe.image not in (None, side):
        raise SpecError(f"image: found {recipe.image}, expected {side}, the model's own")
    return replace(recipe, image=side)


def labels(arena: Arena, recipe: Recipe) -> Tensor:
    """A class for each sample: (batch) int64."""
    return empty(arena, (recipe.batch,), INT64, Category.INPUT)
