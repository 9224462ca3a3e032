"""Indices that an operation picks by unknown values: distinct, and in range.

What is assumed of unknown values is that they are all alike, so any index is right. Of many, each
row begins somewhere in the middle and goes on from there: at the ends of a vocabulary there are
special tokens, which end a text. Of few, such as classes, it begins anywhere. A sort leaves all
where it is.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from ullage.players.inside.library import ASSUMED
from ullage.players.inside.values.cpu_ops import Beside
from ullage.players.inside.values.known import Known
from ullage.players.inside.values.uniform import base_name

_FEW = 1024
_MIXING, _MODULUS, _SKIPPED = 48271, 2**31 - 1, 1 << 10  # Lehmer's generator
_ONE = frozenset({"argmax", "argmin", "max", "min", "mode", "median", "nanmedian"})
_SOME = frozenset({"topk", "multinomial"})
_ALL = frozenset({"sort", "argsort"})
_LARGEST = 1 << 17
NAMES = _ONE | _SOME | _ALL | {"_amp_foreach_non_finite_check_and_unscale"}
"""Operations, without the underscore of the one in place."""


class Choices:
    """Gives chosen indices values; one for the process."""

    def __init__(self, torch: ModuleType, beside: Beside) -> None:
        self._torch = torch
        self._beside = beside

    def choose(self, op: Any, args: Any, kwargs: Any, known: Known | None, result: Any) -> None:
        """After an operation of NAMES whose inputs are not all known."""
        name = base_name(op)
        is_known = known is not None and known.is_complete and not known.numbers
        if name == "_amp_foreach_non_finite_check_and_unscale":
            self._store(args[1], self._torch.zeros(args[1].size(), device="cpu"))
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
        if name == "multinomial":
            dim = -1
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

    def _store(self, tensor: Any, values: Any) -> None:
        if self._beside.is_small(tensor) and math.prod(values.size()) == tensor.numel():
            self._beside.store(tensor, values.to(tensor.dtype), ASSUMED)
