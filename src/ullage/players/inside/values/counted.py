"""The number of elements found by operations whose output shape depends on it.

If a value is unknown, the number is assumed (assume.py), and later reads agree with it: a mask of
which all elements were found is True wherever it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.players.inside import library
from ullage.players.inside.library import ASSUMED, Uniformity
from ullage.players.inside.values.assume import Assumed
from ullage.players.inside.values.cpu_ops import Beside
from ullage.players.inside.values.known import Known
from ullage.players.inside.values.routers import Routers

_FOLLOWS = "as the values are assumed"


class Counted:
    """Tells the phantom the counts. One instance per process.

    Attributes:
        ops: the operations, with the types of the tensors that determine their shape; None: any.
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
        self._repeat, self._bins = aten.repeat_interleave.Tensor, aten.bincount.default
        self._coalesce = aten._coalesce.default
        self._uniques = {
            *(aten._unique.default, aten._unique2.default, aten.unique_dim.default),
            *(aten.unique_consecutive.default, self._coalesce),
        }
        masks = (torch.bool, torch.uint8)
        self.ops: dict[Any, tuple[Any, ...] | None] = {
            **dict.fromkeys([aten.nonzero.default, self._repeat, self._bins, *self._uniques]),
            **dict.fromkeys([aten.masked_select.default, aten.index.Tensor, *self._places], masks),
        }

    def flags(self, op: Any, args: Any) -> list[Any]:
        """The tensors that determine the shape: the mask or index, not the tensor it applies to."""
        if op is self._coalesce:
            deciding = [args[0]._indices()]
        else:  # a mask is the second argument, and a bincount's weights do not count
            deciding = self._beside.tensors(args[:1] if self.ops[op] is None else args[1:2])
        dtypes = self.ops[op]
        return [
            tensor
            for tensor in deciding
            if tensor.is_cuda and (dtypes is None or tensor.dtype in dtypes)
        ]

    def expect(
        self, op: Any, args: Any, kwargs: Any, known: Known | None, *, is_following: bool
    ) -> bool:
        """Tells the phantom the number of elements; False: no tensor determines the shape."""
        flags = self.flags(op, args)
        if not flags:
            return False
        dim = self._dim(op, args, kwargs)
        most = max(flag.numel() if dim is None else flag.size(dim) for flag in flags)
        if op is self._coalesce and is_following:  # a sparse tensor has no address
            known = self._beside.read_inputs(op, flags)
        values = [known.inputs.get(id(flag)) for flag in flags] if known is not None else []
        words = ""
        if values and all(value is not None for value in values):
            count = self._count(op, values, dim)
            if known is not None and not known.assumed.isdisjoint(map(id, flags)):
                words = self._words(count, most)
        elif op in self._places and (placed := self._count_placed(op, args)) is not None:
            count = placed
        else:
            count, words = self._count_unknown(op, flags, most, is_following=is_following)
        if op is self._bins:  # reads the largest number, which may be narrower than a count
            element = self._beside.policy.element(count, flags[0].dtype)
            library.expect_element(element, len(element), int(not words))
        else:
            library.expect_count(count)
        if words and most:  # nothing is found among nothing
            what = str(op).removeprefix("aten.").split(".")[0].strip("_")
            self._note(what, 8 * count, words)
        return True

    def _dim(self, op: Any, args: Any, kwargs: Any) -> int | None:
        """The dimension whose slices an operation tells apart; None: it takes elements."""
        if op is self._coalesce:
            return 1
        names = (argument.name for argument in op._schema.arguments if op in self._uniques)
        dim: int | None = (dict(zip(names, args, strict=False)) | kwargs).get("dim")
        return dim

    def _count(self, op: Any, flags: list[Any], dim: int | None) -> int:
        """The number of elements that nonzero, a mask, unique or repeat_interleave finds; of
        bincount, the largest number.
        """
        if op in self._uniques:
            name = "unique_consecutive" if "consecutive" in str(op) else "unique"
            unique = getattr(self._torch, name)(flags[0], return_counts=True, dim=dim)
            return int(unique[-1].numel())
        if op is self._repeat:
            return int(flags[0].sum())
        if op is self._bins:
            return int(flags[0].max())
        return max(int(flag.count_nonzero()) for flag in flags)

    def _words(self, count: int, most: int) -> str:
        is_asked_for = count == self._assumed.found(most)
        return self._assumed.found_in_words if is_asked_for else _FOLLOWS

    def _count_unknown(
        self, op: Any, flags: list[Any], most: int, *, is_following: bool
    ) -> tuple[int, str]:
        if op is self._bins:  # no number is the largest that it can have
            return int(self._beside.uniform.of(flags[0]).value), _FOLLOWS
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
        if op in self._uniques:
            return 1 if why in {Uniformity.TRUE, Uniformity.READ} else None
        return flags[0].numel() if number else 0

    def _decide(self, op: Any, flag: Any, count: int) -> None:
        """Makes later reads of the tensor agree with the count."""
        is_mask = flag.dtype is self._torch.bool
        is_integer = not (flag.is_floating_point() or flag.is_complex() or op is self._coalesce)
        if is_mask and count in (0, flag.numel()):
            self._beside.uniform.decide(flag, float(count > 0))
        elif is_integer and self._beside.is_small(flag):
            numbers = self._torch.arange(flag.numel(), device="cpu")
            if op is self._repeat:
                values = self._torch.ones_like(numbers)
            elif op in self._uniques:
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
