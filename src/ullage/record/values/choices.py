"""Indices that an operation picks by unknown values, or at random: distinct, and in range.

What is assumed of unknown values is that they are all alike, so any index is right. Of many, each
row begins somewhere in the middle and goes on from there: at the ends of a vocabulary there are
special tokens, which end a text. Of few, such as classes, it begins anywhere. A sort leaves all
where it is.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from ullage.record.session.library import ASSUMED
from ullage.record.values.cpu_ops import Beside
from ullage.record.values.known import Known
from ullage.record.values.uniform import base_name

_SEED = 16
_FEW = 1024
_MIXING, _MODULUS, _SKIPPED = 48271, 2**31 - 1, 1 << 10  # Lehmer's generator
_ONE = frozenset({"argmax", "argmin", "max", "min", "mode", "median", "nanmedian"})
_SOME = frozenset({"topk", "multinomial"})
_RANDOM = frozenset({"randperm", "randint", "randint_like", "random", "multinomial"})
_ALL = frozenset({"sort", "argsort"})
_LARGEST = 1 << 17
NAMES = _ONE | _SOME | _RANDOM | _ALL | {"_amp_foreach_non_finite_check_and_unscale"}
"""Operations, without the underscore of the one in place."""


class Choices:
    """Gives chosen indices values; one for the process."""

    def __init__(self, torch: ModuleType, beside: Beside) -> None:
        self._torch = torch
        self._beside = beside
        self._generator = torch.Generator(device="cpu").manual_seed(_SEED)
        self._names: dict[Any, str] = {}

    def choose(self, op: Any, args: Any, kwargs: Any, known: Known | None, result: Any) -> None:
        """After an operation of NAMES whose inputs are not all known, or that is random."""
        name = self._names.get(op) or self._names.setdefault(op, base_name(op))
        is_known = known is not None and known.is_complete and not known.numbers
        if name == "_amp_foreach_non_finite_check_and_unscale":
            self._store(args[1], self._torch.zeros(args[1].size(), device="cpu"))
        elif name in _RANDOM:
            self._draw(name, args, kwargs, result)
        elif not is_known:
            indices = result[-1] if isinstance(result, tuple) else result
            if indices.dtype is self._torch.int64:
                self._pick(name, args, kwargs, indices)

    def _pick(self, name: str, args: Any, kwargs: Any, indices: Any) -> None:
        of = args[0]
        default = None if name in {"argmax", "argmin"} else -1
        position = {"topk": 2, "sort": 1}.get(name, 1)
        dim = args[position] if len(args) > position else kwargs.get("dim", default)
        if name == "sort" and isinstance(dim, bool):  # sort.stable has `stable` before `dim`
            dim = kwargs.get("dim", -1)
        if not 0 < indices.numel() <= _LARGEST:
            return
        if dim is None or of.dim() == 0:
            self._store(indices, self._rows(1, of.numel(), 1).reshape(indices.size()))
            return
        num = of.size(dim)
        rows = of.numel() // num
        if name in _ONE:
            self._store(indices, self._rows(rows, num, 1).reshape(indices.size()))
            return
        count = indices.size(dim)
        chosen = self._rows(rows, num, count, is_sorted=name in _ALL)
        sizes = [*of.size()]
        del sizes[dim]
        self._store(indices, chosen.reshape(*sizes, count).movedim(-1, dim))

    def _rows(self, rows: int, num: int, count: int, *, is_sorted: bool = False) -> Any:
        """(rows, count): what each row picks of `num`."""
        along = self._torch.arange(count, device="cpu")
        if is_sorted:
            return along.expand(rows, count)
        spread = num if num <= _FEW else num // 4
        down = (
            self._torch.arange(rows, device="cpu")[:, None]
            * _MIXING
            % _MODULUS
            // _SKIPPED
            % spread
        )
        return (num // 2 + down + along) % num

    def _draw(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        count = result.numel()
        if not (result.is_cuda and 0 < count <= _LARGEST):
            return
        if name == "randperm":
            indices = self._torch.randperm(count, generator=self._generator, device="cpu")
        elif name == "multinomial":
            indices = self._rows(count // result.size(-1), args[0].size(-1), result.size(-1))
        else:
            low, high = self._range(name, args, result.dtype)
            indices = low + self._torch.arange(count, device="cpu") % max(1, high - low)
        self._store(result, indices.reshape(result.size()))

    def _range(self, name: str, args: Any, dtype: Any) -> tuple[int, int]:
        """What random integers are drawn from: low, and the first that is too high."""
        bounds = [arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)][:2]
        if name == "randint" and bounds and isinstance(args[0], int):
            high = args[1] if isinstance(args[1], int) else args[0]
            return (args[0] if isinstance(args[1], int) else 0), high
        if len(bounds) == 2:
            return bounds[0], bounds[1]
        highest = 2 if dtype is self._torch.bool else 128
        return 0, bounds[0] if bounds else highest

    def _store(self, tensor: Any, values: Any) -> None:
        if self._beside.is_small(tensor) and math.prod(values.size()) == tensor.numel():
            self._beside.store(tensor, values.to(tensor.dtype), ASSUMED)
