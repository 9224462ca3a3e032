"""Recipes: what was done to a CPU tensor, in a form in which it can be done later.

Recipes(torch).follow(storage, steps) gives the bytes that the steps would have given when they were
noted, random numbers included.
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

from ullage.record.session import library


@dataclass(frozen=True, slots=True)
class View:
    """Where a tensor lies in its storage; sizes in elements."""

    dtype: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Step:
    """One operation that was put off: in place on a view, with numbers for arguments; a fill has
    the state that the generator had, a copy what it is of.
    """

    op: Any
    view: View
    args: tuple[Any, ...] = ()
    generator_state: tuple[mmap.mmap, int, int] | None = None
    source: Recipe | None = None

    @property
    def is_zero(self) -> bool:
        """Whether it leaves nothing but zeros."""
        name = self.op.name()
        # Not -0.0, which has a bit.
        is_no_number = name == "aten::fill_.Scalar" and str(*self.args) in ("0", "0.0", "False")
        return name == "aten::zero_" or is_no_number


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a tensor of what is in a storage of so many bytes: fresh, then the steps."""

    num_bytes: int
    steps: tuple[Step, ...]
    view: View


class _States:
    """Generators' states, apart from the heap: small blocks among large ones that come and go
    would keep it from shrinking.
    """

    _ROOM = 1 << 22

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._page, self._used = mmap.mmap(-1, self._ROOM), 0

    def keep(self, state: Any) -> tuple[mmap.mmap, int, int]:
        """Where a copy of the state, a tensor of bytes, is."""
        size = state.numel()
        if self._used + size > self._ROOM:
            self._page, self._used = mmap.mmap(-1, self._ROOM), 0
        place = (self._page, self._used, size)
        self._page[self._used : self._used + size] = ctypes.string_at(state.data_ptr(), size)
        self._used += size
        return place

    def find(self, place: tuple[mmap.mmap, int, int]) -> Any:
        """The state again."""
        page, offset, size = place
        dtype = self._torch.uint8
        return self._torch.frombuffer(page, dtype=dtype, offset=offset, count=size).clone()


class Recipes:
    """Follows recipes. One for the process."""

    def __init__(self, torch: ModuleType) -> None:
        self._local = threading.local()
        self.states = _States(torch)
        self._torch = torch
        self._storage_of = torch._C.TensorBase.untyped_storage
        self._draws: dict[tuple[Any, Any, int], tuple[int, int] | None] = {}

    @property
    def is_busy(self) -> bool:
        """Whether this thread follows one."""
        return getattr(self._local, "is_busy", False)

    def follow(self, storage: Any, steps: tuple[Step, ...]) -> None:
        """Does the steps on a storage."""
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
        """Operations are done as torch does them, whatever mode the program is in."""
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
        """How many 32-bit numbers a fill draws; None: its generator is not one that is known.

        So many an element, and some more where the count is not a multiple of 16: torch fills in
        batches of that many. Both are looked up by drawing.
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
        """How many numbers a small fill draws; None: not as `skip_random` understands it."""
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
    """Numbers until the generator's next round, as its state has it."""
    return int.from_bytes(bytes(state[8:12].tolist()), "little")


def view_of(tensor: Any) -> View:
    """Where a tensor lies in its storage."""
    return View(
        tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset())
    )
