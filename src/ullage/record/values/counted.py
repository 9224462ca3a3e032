"""The number of elements found by operations whose output shape depends on it.

If a value is unknown, the number is assumed (assume.py), and later reads agree with it: a mask of
which all elements were found is True wherever it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.record.session import library
from ullage.record.session.library import ASSUMED, Uniformity
from ullage.record.values.assume import Assumed
from ullage.record.values.cpu_ops import Beside
from ullage.record.values.known import Known
from ullage.record.values.routers import Routers

_FOLLOWS = "as the values are assumed"


class Counted:
    """Tells the phantom the counts. One instance per process.

    Attributes:
        ops: the operations, with the type of the tensors that determine their shape; None: any.
    """

    def __init__(
        self,
        torch: ModuleType,
        beside: Beside,
        assumed: Assumed,
        routers: Routers,
        note: Callable[[str, int, str], None],
    ) -> None:
        """`note(what, num_bytes, assumption)` adds an assumption, with its line, to the report."""
        self._torch = torch
        self._beside = beside
        self._assumed = assumed
        self._routers = routers
        self._note = note
        aten = torch.ops.aten
        self._scattered = aten.masked_scatter_backward.default
        self._places = {aten.index_put_.default, aten._index_put_impl_.default, self._scattered}
        self._repeat = aten.repeat_interleave.Tensor
        self.ops = {
            aten.nonzero.default: None,
            aten._unique2.default: None,
            aten.unique_dim.default: None,
            aten.unique_consecutive.default: None,
            aten.repeat_interleave.Tensor: None,
            aten.masked_select.default: torch.bool,
            aten.index.Tensor: torch.bool,
            aten.index_put_.default: torch.bool,
            aten._index_put_impl_.default: torch.bool,
            aten.masked_scatter_backward.default: torch.bool,
        }

    def flags(self, op: Any, args: Any) -> list[Any]:
        """The tensors that determine the shape: the mask or index, not the tensor it applies to."""
        dtype = self.ops[op]
        return [
            tensor
            for tensor in self._beside.tensors(args if dtype is None else args[1:2])
            if tensor.is_cuda and (dtype is None or tensor.dtype is dtype)
        ]

    def expect(self, op: Any, args: Any, known: Known | None, *, is_following: bool) -> bool:
        """Tells the phantom the number of elements; False: no tensor determines the shape."""
        flags = self.flags(op, args)
        if not flags:
            return False
        values = [known.inputs.get(id(flag)) for flag in flags] if known is not None else []
        if values and all(value is not None for value in values):
            count = self._count(op, values)
            library.expect_count(count)
            if known is not None and not known.assumed.isdisjoint(map(id, flags)):
                most = max(flag.numel() for flag in flags)
                self._list(op, count, self._words(count, most))
            return True
        placed = self._count_placed(op, args) if op in self._places else None
        if placed is not None:
            library.expect_count(placed)
            return True
        count, words = self._count_unknown(op, flags, is_following=is_following)
        library.expect_count(count)
        self._list(op, count, words)
        return True

    def _count(self, func: Any, flags: list[Any]) -> int:
        """The number of elements that nonzero, a mask, unique or repeat_interleave finds."""
        if "unique" in str(func):
            return int(self._torch.unique(flags[0]).numel())
        if "repeat" in str(func):
            return int(flags[0].sum())
        return max(int(flag.count_nonzero()) for flag in flags)

    def _list(self, op: Any, count: int, words: str) -> None:
        what = str(op).removeprefix("aten.").split(".")[0].strip("_")
        self._note(what, 8 * count, words)

    def _words(self, count: int, most: int) -> str:
        is_asked_for = count == self._assumed.found(most)
        return self._assumed.found_in_words if is_asked_for else _FOLLOWS

    def _count_unknown(self, op: Any, flags: list[Any], *, is_following: bool) -> tuple[int, str]:
        most = max(flag.numel() for flag in flags)
        count, words = self._assumed.found(most), self._assumed.found_in_words
        if op is self._repeat:
            count, words = most, "once each"
        elif len(flags) == 1 and (routed := self._routers.most(flags[0])) is not None:
            return routed, self._routers.words
        if not is_following or not all(map(self._beside.has_address, flags)):
            return count, words
        decided = self._count_decided(op, flags)
        if decided is not None:
            return decided, self._words(decided, most)
        for flag in flags:
            self._decide(op, flag, count)
        return count, words

    def _count_decided(self, op: Any, flags: list[Any]) -> int | None:
        """The number of elements found in a uniform tensor if it was read before; else None."""
        number, why = self._beside.uniform.of(flags[0])
        if len(flags) > 1 or why is Uniformity.ASSUMED or op is self._repeat:
            return None
        if "unique" in str(op):
            return 1 if why in {Uniformity.TRUE, Uniformity.READ} else None
        return flags[0].numel() if number else 0

    def _decide(self, op: Any, flag: Any, count: int) -> None:
        """Makes later reads of the tensor agree with the count."""
        is_mask = flag.dtype is self._torch.bool
        is_integer = not flag.is_floating_point() and not flag.is_complex()
        if is_mask and count in (0, flag.numel()):
            self._beside.uniform.decide(flag, float(count > 0))
        elif is_integer and self._beside.is_small(flag):
            numbers = self._torch.arange(flag.numel(), device="cpu")
            if op is self._repeat:
                values = self._torch.ones_like(numbers)
            elif "unique" in str(op):
                values = numbers % max(1, count)
            else:
                values = numbers < count
            self._beside.store(flag, values.to(flag.dtype).reshape(flag.size()), ASSUMED)

    def _count_placed(self, op: Any, args: Any) -> int | None:
        """The number of values that a single mask places; None: their shape does not tell."""
        if op is self._scattered:
            return int(math.prod(args[2]))
        whole, indices, values = args[:3]
        masks = [index for index in indices if index is not None]
        if len(masks) != 1 or values.dim() != whole.dim() - masks[0].dim() + 1:
            return None
        count = int(values.size(next(i for i, index in enumerate(indices) if index is not None)))
        return count if count > 1 else None  # a single value may be broadcast
