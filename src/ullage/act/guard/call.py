"""One call of an operator of PyTorch: its operands, what it changes, and the rows of its lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ullage.act.guard.sharded.local_tensors import part_of

Key = tuple[str, int]


class Call:
    """One call of an operator.

    Attributes:
        func: the operator.
        name: of it, such as "_foreach_add_".
        written: the tensors outside and within lists that it changes.
        tensors: all tensor operands.
        rows: the numbers of the rows of its lists; empty for operators without lists of equal
            length.
        is_fused: whether it is an optimizer's fused update.
    """

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func = func
        self._args, self._kwargs = args, kwargs
        schema = func._schema
        self.name = str(schema.name).partition("::")[2]
        names = [argument.name for argument in schema.arguments]
        self._values = {**dict(zip(names, args, strict=False)), **kwargs}
        self._is_written = {
            argument.name: argument.alias_info is not None and argument.alias_info.is_write
            for argument in schema.arguments
        }
        self.is_fused = self.name.startswith("_fused_")
        self.tensors = [*tensors_in(list(self._values.values()))]
        self.written = [
            tensor
            for name, value in self._values.items()
            if self._is_written[name]
            for tensor in tensors_in(value)
        ]
        self.rows: range = range(0)
        if self.name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
            self.rows = range(len(next(v for v in self._values.values() if _is_row_list(v))))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Its arguments that are given by position."""
        return self._args

    @property
    def keywords(self) -> dict[str, Any]:
        """Its arguments that are given by name."""
        return self._kwargs

    @property
    def changed(self) -> list[Any]:
        """The tensors that it changes: a fused update changes gradients only by a loss scale."""
        reads = self.is_fused and self._values.get("grad_scale") is None
        return [
            tensor
            for name, value in self._values.items()
            if self._is_written[name] and not (reads and name == "grads")
            for tensor in tensors_in(value)
        ]

    def run(self) -> Any:
        """Runs it."""
        return self.func(*self._args, **self._kwargs)

    def run_rows(self, rows: Sequence[int]) -> Any:
        """Runs it on some rows."""
        if len(rows) == len(self.rows):
            return self.run()
        args = [self._some(value, rows) for value in self._args]
        return self.func(*args, **{k: self._some(v, rows) for k, v in self._kwargs.items()})

    def _some(self, value: Any, rows: Sequence[int]) -> Any:
        return [value[row] for row in rows] if self._is_list_of_rows(value) else value

    def _is_list_of_rows(self, value: Any) -> bool:
        return isinstance(value, list | tuple) and len(value) == len(self.rows) > 0

    def tensors_of(self, row: int) -> list[Any]:
        """The operands of a row, and those of all rows."""
        return [*tensors_in([self._of(value, row) for value in self._values.values()])]

    def written_of(self, row: int) -> list[Any]:
        """The tensors that a row changes."""
        return [
            tensor
            for name, value in self._values.items()
            if self._is_written[name]
            for tensor in tensors_in(self._of(value, row))
        ]

    def _of(self, value: Any, row: int) -> Any:
        return value[row] if self._is_list_of_rows(value) else value

    def count_of_steps(self, row: int) -> Any:
        """The tensor that counts the steps of a row of a fused update, or None."""
        counts = self._values.get("state_steps")
        return counts[row] if counts else None

    def kind(self, row: int | None) -> tuple[Any, ...]:
        """The key of the effect on version counters: operator, dtypes, devices."""
        tensors = self.tensors if row is None else self.tensors_of(row)
        return (self.func, *((tensor.dtype, tensor.device, tensor.dim()) for tensor in tensors))

    def try_counter(self, row: int | None) -> int:
        """How much the operator adds to the version counter of what it changes, on small tensors
        of the same kinds; for a row of lists, or for all operands.
        """
        small: dict[int, Any] = {}

        def pick(value: Any) -> Any:
            is_rows = row is not None and self._is_list_of_rows(value)
            return _shrink([value[row]] if is_rows else value, small)

        args = [pick(value) for value in self._args]
        kwargs = {name: pick(value) for name, value in self._kwargs.items()}
        target = small[id((self.written if row is None else self.written_of(row))[0])]
        before = target._version
        self.func(*args, **kwargs)
        return int(target._version - before)


def memory_key(tensor: Any) -> Key:
    """The key that tells the memory of tensors apart."""
    if tensor.layout is not torch.strided:
        return ("sparse", id(tensor))
    tensor = part_of(tensor)
    address = tensor.untyped_storage().data_ptr()
    return (str(tensor.device), address) if address else ("empty", id(tensor))


def tensors_in(value: Any) -> Iterable[Any]:
    """The tensors in a value and the lists in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from tensors_in(element)


def _shrink(value: Any, small: dict[int, Any]) -> Any:
    """Tensors of one element in place of those in a value, noted by their ids. (A function within
    its caller would hold itself, and so the tensors until cycles are collected.)
    """
    if isinstance(value, torch.Tensor):
        if id(value) not in small:
            shape = [1] * value.dim()
            small[id(value)] = torch.ones(shape, dtype=value.dtype, device=value.device)
        return small[id(value)]
    if isinstance(value, list | tuple):
        return [_shrink(element, small) for element in value]
    return value


def _is_row_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], torch.Tensor)
