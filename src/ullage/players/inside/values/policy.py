"""The answers for reads of values that no kernel has computed (docs/reference/values.md).

A floating-point number is slightly above one half and decreases slightly with each training step.
So it is positive and finite, valid as a probability and for a logarithm, and plausible as a loss.
An integer is 0. A flag is False until an operation finds elements by it. `--assume values=zeros`
makes all of them 0.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from ullage.players.inside.values.assume import Assumed, Plausibility
from ullage.players.inside.values.uniform import COMPARISONS

_MIDDLE, _SLOWNESS = 0.5, 100
_FALL, _MAX_FALLS = 0.85, 32
"""The ratio of losses and gradients between two evaluations by a search: less than the
0.9 at which LBFGS's line search takes a step, and not so much that it has converged at 1e-7."""
_SHORTEST = 1e-5
"""The least element of a step, well above the 1e-9 at which a search ends."""
_MAX_ANSWERED_BYTES = 4 << 20
"""Larger copies of floating-point numbers to the host are zeros, because untouched pages take no
host memory (docs/results/programs.md)."""


class Policy:
    """The assumed number of all elements of an unknown tensor.

    Attributes:
        num_steps: the number of completed training steps.
        num_evaluations: how often the optimizer has called its closure in this step.
        is_search: whether an optimizer chooses its next step, between calls of its closure.
        words: the text for a host read of an assumed value in the report.
    """

    def __init__(self, torch: ModuleType, assumed: Assumed) -> None:
        self.num_steps = self.num_evaluations = 0
        self.is_search = False
        self.is_plausible = assumed.values is Plausibility.PLAUSIBLE
        self.words = "answered plausibly" if self.is_plausible else "answered as zeros"
        self._torch = torch

    def number(self, dtype: Any) -> float:
        """The assumed number of an element of this type."""
        if self.is_plausible and (dtype.is_floating_point or dtype.is_complex):
            falls = self.num_evaluations % _MAX_FALLS
            return (_MIDDLE + 1 / (_SLOWNESS + self.num_steps)) * _FALL**falls
        return 0.0

    def bounded(self, number: float) -> float:
        """A number of a vector in a search, with its sign: its gradients do not depend on its
        steps, which would shrink or grow without end.
        """
        return math.copysign(min(max(abs(number), _SHORTEST), 1.0), number)

    def cast(self, number: float, dtype: Any) -> float | None:
        """The number in another type; None: the type cannot represent it, so it is unknown."""
        if dtype is self._torch.bool:
            return float(number != 0)
        if not math.isfinite(number):
            return None
        if dtype.is_floating_point or dtype.is_complex:
            return number if abs(number) <= self._torch.finfo(dtype).max else None
        limits = self._torch.iinfo(dtype)
        return float(int(number)) if limits.min <= number <= limits.max else None

    def element(self, number: float, dtype: Any) -> bytes:
        """The bytes of one element."""
        tensor = self._torch.full((1,), number, dtype=dtype, device="cpu")
        return bytes(tensor.untyped_storage())

    def is_answered(self, dtype: Any, num_bytes: int) -> bool:
        """True if a host read of this many unknown bytes gets the number."""
        return num_bytes <= _MAX_ANSWERED_BYTES or not dtype.is_floating_point


_OPPOSITES = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def deciding(name: str, bound: float, number: float, *, holds: bool) -> float:
    """A number for which the comparison with `bound` is true, or false, as in `holds`; `number`
    itself if that fits.
    """
    name = name if holds else _OPPOSITES[name]
    if COMPARISONS[name](number, bound):
        return number
    if name in {"gt", "ge"}:
        return (1 + bound) / 2 if 0 <= bound < 1 else bound + max(1.0, abs(bound)) / 2
    if name in {"lt", "le"}:
        return bound / 2 if bound > 0 else bound - max(1.0, abs(bound)) / 2
    return bound if name == "eq" else bound + 1
