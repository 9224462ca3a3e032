"""Splits the batch of a step, where no plan makes it fit: the last rungs of a guard.

    def train_step(parts):
        for part, weight in parts:
            (weight * loss_of(model(part))).backward()
        optimizer.step()
        optimizer.zero_grad()

    guard.step_in_parts(train_step, batch)

The program says by this shape that its loss is a weighted mean over the rows: a guard cannot see
it. What can be seen is checked: weights that do not sum to 1, and parts that have lost rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from ullage.act.guard.failure import say
from ullage.ground.errors import GuardError, SpecError

if TYPE_CHECKING:
    from ullage.act.guard.ladder import Ladder
    from ullage.act.guard.state.state import State

Result = TypeVar("Result")
Part = tuple[Any, float]
Split = Callable[[Any, int], Sequence[Part]]
Divide = Callable[[int], Sequence[Part]]
# Two, four and eight parts.
NUM_SPLITS = 3
_TOLERANCE = 1e-6


def split_rows(
    batch: Any, num_parts: int, *, weigh: Callable[[Any], Any] | None = None
) -> list[Part]:
    """Splits a batch along the first dimension of its tensors, which are not copied.

    Args:
        batch: a tensor, or a nest of mappings, lists and tuples. Every tensor that has a dimension
            has as many rows; tensors without one, numbers and texts go to every part.
        num_parts: how many parts at most; there are no more than rows.
        weigh: what a part counts for in the loss of the batch, such as its tokens that are not
            padding, where the loss is their mean. None: its rows.

    Returns:
        parts of nearly as many rows each, with weights that sum to 1.

    Raises:
        SpecError: there is no tensor, the tensors have different rows, or a list of other values
            is as long as the batch has rows, so that it is not known whether it is to be split.
        GuardError: the weights are not numbers above 0.
    """
    num_rows = _num_rows(batch)
    num_parts = min(num_parts, num_rows)
    ends = [num_rows * number // num_parts for number in range(num_parts + 1)]
    slices = [slice(*pair) for pair in pairwise(ends)]
    parts = [_take_rows(batch, rows, num_rows) for rows in slices]
    if weigh is None:
        shares = [(rows.stop - rows.start) / num_rows for rows in slices]
        return [*zip(parts, shares, strict=True)]
    counts = [float(weigh(part)) for part in parts]
    total = sum(counts)
    if not (math.isfinite(total) and total > 0 and min(counts) >= 0):
        raise GuardError(
            f"weigh= gave {counts} for the parts of a batch; expected numbers from 0 up, and one "
            "above 0"
        )
    # The mean of a part that counts for nothing is not a number: it goes with a neighbour.
    joined: list[tuple[slice, float]] = []
    for rows, count in zip(slices, counts, strict=True):
        if joined and not (count and joined[-1][1]):
            before, sum_before = joined.pop()
            rows, count = slice(before.start, rows.stop), sum_before + count
        joined.append((rows, count))
    return [(_take_rows(batch, rows, num_rows), count / total) for rows, count in joined]


class BatchSplit:
    """Splits the batches of a guard.

    Args:
        model: the `nn.Module`; not split are the batches of one that is compiled, or that has
            statistics of a batch.
        has_ranks: whether there are several ranks; their batches are not split.

    Attributes:
        num_steps: how many steps were completed with their batch in parts.
    """

    def __init__(self, model: Any, *, has_ranks: bool) -> None:
        from ullage.act.guard.captured import is_compiled

        reason = "the model is compiled" if is_compiled(model) else None
        self.num_steps = 0
        self._num_parts = 1
        self._reason = "there are several ranks" if has_ranks else reason
        self._norms = [*_batch_norms(model)]
        self._has_said_why_not = False

    @property
    def num_splits(self) -> int:
        """The number of rungs on which a batch is split; says once why there are none."""
        reason = self._reason
        training = next((name for name, module in self._norms if module.training), None)
        if reason is None and training is not None:
            reason = f"{training!r} has statistics of a batch, which are others for its parts"
        if reason is None:
            return NUM_SPLITS
        if not self._has_said_why_not:
            say(f"no batch is split: {reason}")
        self._has_said_why_not = True
        return 0

    @property
    def text(self) -> str:
        """How many steps were completed in parts, after the number of steps."""
        return f", {self.num_steps} of them with the batch in parts" if self.num_steps else ""

    def sameness(self, ladder: Ladder, state: State) -> str:
        """The sentence on a step that was run in parts."""
        if ladder.num_parts == 1:
            return ""
        drawn = " and what is drawn" if state.has_drawn() else ""
        return f": the same up to rounding{drawn}"

    def count(self) -> None:
        """Counts a step that was completed."""
        self.num_steps += self._num_parts > 1
        self._num_parts = 1

    def divider(self, batch: Any, split: Split | None) -> Divide:
        """The parts of a batch, by how many there are to be."""
        return lambda num_parts: divide(batch, split or split_rows, num_parts)

    def calls(
        self, fn: Callable[..., Result], divide: Divide, ladder: Ladder, optimizers: Sequence[Any]
    ) -> Callable[[], Result]:
        """The call of a step with the parts of its batch on the rung that is then applied."""

        def call() -> Result:
            self._num_parts = ladder.num_parts
            parts = divide(self._num_parts)
            for each in optimizers:
                each.is_once = self._num_parts > 1
            return fn(parts)

        return call


def divide(batch: Any, split: Split, num_parts: int) -> Sequence[Part]:
    """The parts of a batch, with weights that sum to 1; one part is the batch itself.

    Raises:
        GuardError: the weights do not, or the parts have other rows than the batch.
    """
    if num_parts == 1:
        return [(batch, 1.0)]
    parts = [*split(batch, num_parts)]
    _check_weights(parts, num_parts)
    _check_rows(batch, [part for part, _ in parts])
    return parts


def _check_weights(parts: Sequence[Part], num_parts: int) -> None:
    weights = [float(weight) for _, weight in parts]
    if not 1 <= len(parts) <= num_parts:
        raise GuardError(f"split= made {len(parts)} parts; expected 1 to {num_parts}")
    if abs(sum(weights) - 1) > _TOLERANCE or min(weights) <= 0:
        raise GuardError(
            f"split= gave the weights {weights}, whose sum is {sum(weights):g}; expected numbers "
            "above 0 whose sum is 1"
        )


def _check_rows(batch: Any, parts: Sequence[Any]) -> None:
    """Raises GuardError unless each tensor of a batch is whole in the parts: as many rows in all,
    or the same tensor in each.
    """
    from ullage.act.guard.batch import tensors_by_name

    by_name = [dict(tensors_by_name(part)) for part in parts]
    for name, tensor in tensors_by_name(batch):
        pieces = [each.get(name) for each in by_name]
        if all(piece is tensor for piece in pieces):
            continue
        num_rows = [0 if piece is None or not piece.dim() else len(piece) for piece in pieces]
        if not tensor.dim() or sum(num_rows) != len(tensor):
            raise GuardError(
                f"split= left {num_rows} rows of tensor {name or 'batch'!r} of shape "
                f"{tuple(tensor.shape)} in its parts; expected all of its rows, or the tensor "
                "itself in each part"
            )


def _num_rows(batch: Any) -> int:
    from ullage.act.guard.batch import tensors_by_name

    shapes = {name: tuple(each.shape) for name, each in tensors_by_name(batch) if each.dim()}
    rows = {shape[0] for shape in shapes.values()}
    if len(rows) != 1 or rows == {0}:
        text = ", ".join(f"{name or 'batch'} {shape}" for name, shape in shapes.items())
        raise SpecError(
            f"the batch has tensors {text or 'of no shape'}; expected as many rows, and at least "
            "one, in each: pass split="
        )
    return int(rows.pop())


def _take_rows(value: Any, rows: slice, num_rows: int) -> Any:
    import torch

    from ullage.act.guard.batch import tensors_by_name

    if isinstance(value, torch.Tensor):
        return value[rows] if value.dim() else value
    if isinstance(value, Mapping):
        return _with_elements(value, {k: _take_rows(v, rows, num_rows) for k, v in value.items()})
    if isinstance(value, list | tuple):
        if len(value) == num_rows > 1 and not any(True for _ in tensors_by_name(value)):
            raise SpecError(
                f"a {type(value).__name__} of the batch is as long as it has rows ({num_rows}) and "
                "has no tensors; it is not known whether it is to be split: pass split="
            )
        elements = [_take_rows(element, rows, num_rows) for element in value]
        if hasattr(value, "_fields"):  # a named tuple
            return type(value)(*elements)
        return elements if isinstance(value, list) else tuple(elements)
    return value


def _with_elements(mapping: Any, elements: dict[Any, Any]) -> Any:
    """A mapping of the same kind, as the batches of tokenizers are kinds of their own."""
    if type(mapping) is dict or not hasattr(mapping, "__setitem__"):
        return elements
    copied = copy(mapping)
    for key, value in elements.items():
        copied[key] = value
    return copied


def _batch_norms(model: Any) -> Iterator[tuple[str, Any]]:
    from torch.nn.modules.batchnorm import _BatchNorm

    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            yield name, module
