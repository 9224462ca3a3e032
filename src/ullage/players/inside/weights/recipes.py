"""Recipes: the operations on a CPU tensor, stored so that they can be executed later.

Recipes(torch).follow(storage, steps) gives the same bytes, including random numbers, as if the
steps had been executed when they were recorded.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ullage.players.inside import library


@dataclass(frozen=True, slots=True)
class View:
    """The position of a tensor in its storage; sizes in elements."""

    dtype: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Step:
    """One deferred operation: in place on a view, with numbers as arguments. A fill has the state
    of the generator, a copy the recipe of its source.
    """

    op: Any
    view: View
    args: tuple[Any, ...] = ()
    generator_state: tuple[mmap.mmap, int, int] | None = None
    source: Recipe | None = None

    @property
    def is_zero(self) -> bool:
        """True if its result is all zeros."""
        name = self.op.name()
        # -0.0 does not count, because its sign bit is set.
        is_no_number = name == "aten::fill_.Scalar" and str(*self.args) in ("0", "0.0", "False")
        return name == "aten::zero_" or is_no_number


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of a tensor: allocate a storage of this size, execute the steps, take a view."""

    num_bytes: int
    steps: tuple[Step, ...]
    view: View


class _States:
    """Stores generators' states outside of the heap, because small blocks among large short-lived
    ones would keep the heap from shrinking.
    """

    _ROOM = 1 << 22

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._page, self._used = mmap.mmap(-1, self._ROOM), 0

    def keep(self, state: Any) -> tuple[mmap.mmap, int, int]:
        """Stores a copy of a state, a tensor of bytes, and returns its place."""
        size = state.numel()
        if self._used + size > self._ROOM:
            self._page, self._used = mmap.mmap(-1, self._ROOM), 0
        place = (self._page, self._used, size)
        self._page[self._used : self._used + size] = ctypes.string_at(state.data_ptr(), size)
        self._used += size
        return place

    def find(self, place: tuple[mmap.mmap, int, int]) -> Any:
        page, offset, size = place
        dtype = self._torch.uint8
        return self._torch.frombuffer(page, dtype=dtype, offset=offset, count=size).clone()


class Recipes:
    """Executes recipes. One instance per process."""

    def __init__(self, torch: ModuleType) -> None:
        self._local = threading.local()
        self.states = _States(torch)
        self._torch = torch
        self._storage_of = torch._C.TensorBase.untyped_storage
        self._draws: dict[tuple[Any, Any, int], tuple[int, int] | None] = {}

    @property
    def is_busy(self) -> bool:
        """True if this thread is executing one."""
        return getattr(self._local, "is_busy", False)

    def follow(self, storage: Any, steps: tuple[Step, ...]) -> None:
        """Executes the steps on a storage."""
        with self._alone():
            for step in steps:
                self._do(step, self._tensor(storage, step.view))

    def _do(self, step: Step, target: Any) -> None:
        torch = self._torch
        if step.source is not None:
            tensor = torch.empty(step.source.num_bytes, dtype=torch.uint8, device="cpu")
            storage = self._storage_of(tensor)
            self.follow(storage, step.source.steps)
            target.copy_(self._tensor(storage, step.source.view))
        elif step.generator_state is not None:
            generator = torch.Generator()
            generator.set_state(self.states.find(step.generator_state))
            step.op(target, *step.args, generator=generator)
        else:
            step.op(target, *step.args)

    def _tensor(self, storage: Any, view: View) -> Any:
        empty = self._torch.empty(0, dtype=view.dtype, device="cpu")
        return empty.set_(storage, view.offset, view.size, view.stride)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Runs torch's own operations, independent of the program's modes."""
        torch, was_busy = self._torch, self.is_busy
        self._local.is_busy = True
        transforms = importlib.import_module("torch._functorch.pyfunctorch")
        try:
            with (
                torch.no_grad(),
                torch._C.DisableTorchFunction(),
                torch._C._DisableTorchDispatch(),
                transforms.temporarily_clear_interpreter_stack(),
            ):
                yield
        finally:
            self._local.is_busy = was_busy

    def num_draws(self, op: Any, tensor: Any) -> int | None:
        """The number of 32-bit numbers that a fill draws; None: the generator is unknown.

        This is a constant per element, plus a few if the count is not a multiple of 16, because
        torch fills in batches of that size. Both are measured by drawing.
        """
        rest = tensor.numel() % 16
        key = (op, tensor.dtype, rest)
        if key not in self._draws:
            self._draws[key] = self._measure_draws(*key)
        draw = self._draws[key]
        return None if draw is None else draw[0] * tensor.numel() + draw[1]

    def _measure_draws(self, op: Any, dtype: Any, rest: int) -> tuple[int, int] | None:
        spent = [self._spend(op, dtype, count) for count in (32, 32 + rest)]
        if spent[0] is None or spent[1] is None or spent[0] % 32:
            return None
        each = spent[0] // 32
        return each, spent[1] - each * (32 + rest)

    def _spend(self, op: Any, dtype: Any, count: int) -> int | None:
        """The number of numbers that a small fill draws; None: `skip_random` cannot skip them."""
        torch = self._torch
        with self._alone():
            generator = torch.Generator().manual_seed(1)
            torch.empty(1, device="cpu").uniform_(generator=generator)
            start = generator.get_state()
            op(torch.empty(count, dtype=dtype, device="cpu"), generator=generator)
            end = generator.get_state()
            spent = _num_left(start) - _num_left(end)
            if spent > 0:
                library.skip_random(start.data_ptr(), spent)
            return spent if torch.equal(start, end) else None


def _num_left(state: Any) -> int:
    """The numbers that are left until the generator's next round, read from its state."""
    return int.from_bytes(bytes(state[8:12].tolist()), "little")


def view_of(tensor: Any) -> View:
    """The position of a tensor in its storage."""
    return View(
        tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset())
    )
