"""Calls whose tensors are all uniform: the number of the result, and how certain it is."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from ullage.players.inside.library import Uniformity
from ullage.players.inside.values.known import Known
from ullage.players.inside.values.policy import Policy
from ullage.players.inside.values.uniform import COMPARISONS, PREDICATES, RULES, Call
from ullage.players.inside.values.uniform_tensors import Number

_FOLDS = frozenset({"all", "any", "clone", "_to_copy"})
_NEVER = frozenset({"isnan", "isinf", "isposinf", "isneginf"})


class UniformCalls:
    """Applies the rules of players/inside/values/uniform.py."""

    def __init__(self, torch: ModuleType, policy: Policy) -> None:
        self._torch = torch
        self._policy = policy

    def _numbers(self, args: Any, known: Known) -> tuple[float, ...] | None:
        """The number of each argument (number or uniform tensor); None: a tensor is not uniform."""
        numbers: list[float | None] = []
        for arg in args:
            if isinstance(arg, (list, tuple)):
                tensors = [item for item in arg if isinstance(item, self._torch.Tensor)]
                numbers += [self._number(item, known) for item in tensors]
            elif isinstance(arg, self._torch.Tensor):
                numbers.append(self._number(arg, known))
            elif isinstance(arg, (bool, int, float)):
                numbers.append(arg)
        some = tuple(number for number in numbers if number is not None)
        return some if len(some) == len(numbers) else None

    def _number(self, tensor: Any, known: Known) -> float | None:
        """The number of all elements of an input; None: they are not known to be equal."""
        if id(tensor) in known.numbers:
            return known.numbers[id(tensor)].value
        values = known.inputs.get(id(tensor), tensor if tensor.is_cpu else None)
        if values is None or values.numel() != 1 or values.is_complex():
            return None
        return float(values)

    def result(
        self,
        name: str,
        args: Any,
        kwargs: Any,
        known: Known,
        output: Any,
    ) -> Number | None:
        """The number of a call's result; None: no rule, or the type cannot represent it."""
        rule, numbers = RULES.get(name), self._numbers(args, known)
        if rule is None or numbers is None:
            return None
        # In a search a sum is of one element: it compares slopes with a loss, which has no size.
        is_search = self._policy.is_search
        num_folded = 1.0 if is_search else known.missing[0].numel() / max(1, output.numel())
        try:
            number = rule(Call(numbers, args, kwargs, num_folded))
            if is_search and output.numel() > 1:
                number = self._policy.bounded(number)
            value = self._policy.cast(number, output.dtype)
        except (ArithmeticError, ValueError, TypeError, IndexError, AttributeError):
            return None
        return None if value is None else Number(value, self._why(name, args, numbers, known))

    def _why(self, name: str, args: Any, numbers: tuple[float, ...], known: Known) -> Uniformity:
        """How certain a result is. Every assumed number is finite and equals itself, so tests of
        that are true, not assumed.
        """
        whys = {number.uniformity for number in known.numbers.values()}
        if name in {"zero", "fill"} or (whys == {Uniformity.TRUE} and not known.is_assumed):
            return Uniformity.TRUE
        is_itself = name in COMPARISONS and len(args) > 1 and args[0] is args[1]
        is_sure = name in PREDICATES and any(map(math.isinf, numbers))
        if not whys - {Uniformity.TRUE, Uniformity.READ}:
            return Uniformity.READ
        if Uniformity.ASSUMED not in whys or is_itself or is_sure or name in _NEVER:
            return Uniformity.DECIDED
        return Uniformity.ASSUMED

    def origin(self, name: str, args: Any, known: Known) -> tuple[Any, str, float] | None:
        """The comparison that made a mask: the tensor, the comparison's name, and the number; None:
        it compares more than one tensor.
        """
        if name in {"logical_not", "bitwise_not"}:
            return args[0], "eq", 0.0
        if name in _FOLDS:
            return args[0], "ne", 0.0
        is_one = len(args) == 2 and name in COMPARISONS
        if is_one and (not isinstance(args[1], self._torch.Tensor) or args[1].numel() == 1):
            numbers = self._numbers(args, known) or (0.0, 0.0)
            return args[0], name, numbers[1]
        return None
