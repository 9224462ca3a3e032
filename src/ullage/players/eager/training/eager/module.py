"""Layers with parameters, as in torch.nn, and the stack of alike layers that is played three
times and counted as often as in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import accumulate
from typing import Any, Final

from ullage.log.category import Category
from ullage.players.eager.training.eager.arena import Arena, Scope, Section
from ullage.players.eager.training.eager.autograd import checkpoint, connect, record
from ullage.players.eager.training.eager.functional import embedding, layer_norm, linear
from ullage.players.eager.training.eager.tensor import DType, Tensor, empty

_PLAYED: Final = 3  # a stack of at most this many layers is played as it is


def parameter(arena: Arena, *shape: int, dtype: DType, needs_grad: bool = True) -> Tensor:
    """nn.Parameter: memory that belongs to the model."""
    tensor: Tensor
    if arena.sharding is None:
        tensor = empty(arena, shape, dtype, Category.PARAMETER)
    else:
        tensor = arena.sharding.shard(arena, shape, dtype)
    tensor.needs_grad = needs_grad
    return tensor


class Module:
    """A holder of parameters: as attributes, and in the modules, or lists of them, that it holds.

    Attributes:
        adapted: what peft calls the parts of an attribute that its name does not say.
    """

    __call__: Callable[..., Any]
    adapted: Mapping[str, tuple[str, ...]] = {}

    def __init_subclass__(cls) -> None:
        """Wraps calls: what a module makes in one is its own, and not its caller's."""
        call = vars(cls).get("__call__")
        if call is None:
            return

        @wraps(call)
        def inside(self: Module, *inputs: Any, **options: Any) -> Any:  # noqa: ANN401
            arena = next((x.storage.arena for x in inputs if isinstance(x, Tensor)), None)
            if arena is None:
                return call(self, *inputs, **options)
            outer, arena.scope, arena.operator = arena.scope, id(self), None
            try:
                return call(self, *inputs, **options)
            finally:
                arena.scope, arena.operator = outer, None

        cls.__call__ = inside  # type: ignore[method-assign]

    def scopes(self, at: Scope = Scope()) -> Iterator[tuple[int, Scope]]:  # noqa: B008
        """This module, which is at a place of the model, and all in it, by their id()."""
        own = {
            value.storage.index: name
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and value.storage.category is Category.PARAMETER
        }
        yield id(self), at._replace(kind=type(self).__name__, parameters=own)
        for name, value in vars(self).items():
            several = isinstance(value, list)
            for number, child in enumerate(value if isinstance(value, list) else (value,)):
                if isinstance(child, Module):
                    word = f"{name}.{number}" if several else name
                    yield from child.scopes(at._replace(path=f"{at.path}.{word}".lstrip(".")))

    def tensor(self, name: str) -> Tensor:
        """The parameter of a name, with what an adapter adds to it."""
        value = getattr(self, name)
        return value if isinstance(value, Tensor) else value()

    def children(self) -> Iterator[tuple[str, Module, int]]:
        """Each module in it, its name, and how many like it the real model has."""
        for name, value in vars(self).items():
            for child in value if isinstance(value, list) else (value,):
                if isinstance(child, Module):
                    yield name, child, 1

    def parameters(self) -> Iterator[tuple[Tensor, int]]:
        """Each parameter, frozen or not, and how many like it the real model has; one that is
        shared comes once for each module that holds it.
        """
        for value in vars(self).values():
            if isinstance(value, Tensor) and value.storage.category is Category.PARAMETER:
                yield value, 1
        for _, child, repeats in self.children():
            for tensor, count in child.parameters():
                yield tensor, count * repeats


class Identity(Module):
    """nn.Identity: in the place of what a model, or a stage of a pipeline, does without."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


class Linear(Module):
    """nn.Linear."""

    def __init__(
        self,
        arena: Arena,
        inputs: int,
        outputs: int,
        dtype: DType,
        *,
        has_bias: bool = False,
        weight: Tensor | None = None,
    ) -> None:
        """weight: another module's, where the two are tied."""
        self.weight = parameter(arena, outputs, inputs, dtype=dtype) if weight is None else weight
        self.bias = parameter(arena, outputs, dtype=dtype) if has_bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class LMHead(Linear):
    """get_output_embeddings() of transformers: the layer that scores the words."""


class Embedding(Module):
    """nn.Embedding.

    Attributes:
        leaves: where enable_input_require_grads() of transformers makes the output a leaf that
            gets a gradient: these outputs, which the graph holds as long as the loss is there;
            None: it does not.
    """

    def __init__(self, arena: Arena, rows: int, width: int, dtype: DType) -> None:
        self.weight = parameter(arena, rows, width, dtype=dtype)
        self.leaves: list[Tensor] | None = None

    def __call__(self, indices: Tensor) -> Tensor:
        out = embedding(indices, self.weight)
        if self.leaves is not None and not out.needs_grad:
            out.needs_grad = True
            self.leaves[:] = [out]
        return out


class LayerNorm(Module):
    """nn.LayerNorm."""

    def __init__(self, arena: Arena, width: int, dtype: DType, *, has_bias: bool = True) -> None:
        self.weight = parameter(arena, width, dtype=dtype)
        self.bias = parameter(arena, width, dtype=dtype) if has_bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias)


class Stack(Module):
    """Layers, one after the other.

    Of many in a row that are alike the first, one between and the last are played, and the one
    between is counted as often as it stands there; where a pattern of layers comes again and again,
    it is one pattern. That is exact as long as it leaves memory, forward and backward, each time as
    the time before.

    Attributes:
        layers: those that are played.
        pieces: (repeats, number of layers) of each part of them, in order.
    """

    def __init__(
        self,
        arena: Arena,
        name: str,
        count: int,
        make: Callable[..., Module],
        *,
        kinds: Sequence[Hashable] | None = None,
        can_checkpoint: bool = True,
    ) -> None:
        """make: a layer; gets its kind where kinds, one for each layer, are given."""
        self.arena = arena
        self.name = name
        self.layers: list[Any] = []
        self.pieces: list[tuple[int, int]] = []
        self.is_checkpointed: list[bool] = []
        every = arena.checkpoints_every if can_checkpoint else 0
        keys = [
            (None if kinds is None else kinds[place], bool(every) and not (place + 1) % every)
            for place in range(count)
        ]
        for repeats, piece in _find_pieces(keys):
            self.pieces.append((repeats, len(piece)))
            with arena.section(name, "build", repeats):
                for kind, is_checkpointed in piece:
                    self.layers.append(make() if kinds is None else make(kind))
                    self.is_checkpointed.append(is_checkpointed)

    @property
    def repeats(self) -> list[int]:
        """For each layer that is played, how many like it the model has."""
        return [repeats for repeats, count in self.pieces for _ in range(count)]

    def children(self) -> Iterator[tuple[str, Module, int]]:
        for layer, repeats in zip(self.layers, self.repeats, strict=True):
            yield self.name, layer, repeats

    def scopes(self, at: Scope = Scope()) -> Iterator[tuple[int, Scope]]:  # noqa: B008
        yield id(self), at._replace(kind=type(self).__name__)
        at = at._replace(path=f"{at.path}.{{}}")
        layers, number = zip(self.layers, self.is_checkpointed, strict=True), 0
        for repeats, count in self.pieces:
            for place, (layer, is_checkpointed) in zip(range(count), layers, strict=False):
                yield from layer.scopes(
                    at._replace(
                        first=number + place, step=count, repeats=repeats,
                        is_checkpointed=is_checkpointed,
                    )
                )  # fmt: skip
            number += repeats * count

    def __call__(self, x: Tensor, *others: Any) -> Tensor:  # noqa: ANN401
        groups = self._groups()
        x = self._boundary(x, None, groups)
        first = 0
        for repeats, count in self.pieces:
            with self.arena.section(self.name, "forward", repeats):
                for place in range(first, first + count):
                    x = self._call(place, x, others, groups[place])
                    x = self._boundary(x, place, groups)
            first += count
        return x

    def _groups(self) -> list[list[Tensor]]:
        """The parameters of each layer that the ranks shard; empty without sharding."""
        sharding = self.arena.sharding
        if sharding is None:
            return [[] for _ in self.layers]
        return [
            [tensor for tensor, _ in layer.parameters() if id(tensor) not in sharding.apart]
            for layer in self.layers
        ]

    def _call(self, place: int, x: Tensor, others: Sequence[Any], group: list[Tensor]) -> Tensor:
        sharding, layer = self.arena.sharding, self.layers[place]
        since = 0 if sharding is None else len(sharding.order)
        if sharding is not None:
            sharding.gather(group)
        x = checkpoint(layer, x, *others) if self.is_checkpointed[place] else layer(x, *others)
        if sharding is not None:
            sharding.free(group, since, self.repeats[place])
        return x

    def _boundary(self, x: Tensor, place: int | None, groups: list[list[Tensor]]) -> Tensor:
        """Where the backward pass of the layer that made x begins, and that of the next ends.

        place: of the layer that made x; None: what comes before the first.
        """
        log, name, sharding = x.arena.log, self.name, self.arena.sharding
        after = 0 if place is None else place + 1
        ends = list(accumulate(count for _, count in self.pieces))  # exclusive, of each piece

        def rule(gradient: Tensor, _: object) -> list[Tensor]:
            if sharding is not None and after < len(groups):
                sharding.reduce(groups[after])
            last = log.sections[-1]
            is_edge = after in (0, *ends)
            if is_edge and last.phase == "backward" and last.name == name and last.is_open:
                last.end = log.position
            if is_edge and place is not None:
                log.sections.append(Section(name, "backward", self.repeats[place], log.position))
            if place is not None and sharding is not None:
                sharding.regather(groups[place])
            return [gradient]

        return connect(x.alias(is_dense=x.is_dense), record((x,), rule))


_LONGEST: Final = 12  # layers of a pattern


def _find_pieces(keys: Sequence[Hashable]) -> Iterator[tuple[int, Sequence[Any]]]:
    """(repeats, layers) that represent all layers."""
    # A pattern that repeats is there once for its first time, whose backward pass frees what all of
    # its layers share, and once for all the times that another follows.
    place = 0
    while place < len(keys):
        times, length = _find_pattern(keys, place) if len(keys) > _PLAYED else (1, 1)
        if length > 1:
            yield from _find_pieces(keys[place : place + length])
        else:
            yield 1, keys[place : place + 1]
        place += length
        if times > 1:
            yield times, keys[place : place + length]
            place += times * length


def _find_pattern(keys: Sequence[Hashable], place: int) -> tuple[int, int]:
    """(times, length) of the pattern from a place on, after its first time, that spares most."""
    best = (1, 1)
    for length in range(1, _LONGEST + 1):
        end = place
        while end + length < len(keys) and keys[end] == keys[end + length]:
            end += 1
        times = (end - place - 1) // length
        if (times - 1) * length > (best[0] - 1) * best[1]:
            best = (times, length)
    return best
