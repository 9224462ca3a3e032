"""Rules for operations on uniform tensors, whose elements are all the same number.

A uniform tensor of any size needs no elements: its comparison is one comparison, and its softmax is
one division.

RULES["_softmax"](Call(...)) -> 1 / the size of the dimension
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


@dataclass(frozen=True, slots=True)
class Call:
    """A call whose tensors are all uniform.

    Attributes:
        numbers: the number of each argument that is a tensor or a number, in order.
        args, kwargs: the arguments.
        num_folded: the number of elements of the first tensor for each element of the result.
    """

    numbers: tuple[float, ...]
    args: Any
    kwargs: Any
    num_folded: float

    @property
    def first(self) -> float:
        """The number of the first argument."""
        return self.numbers[0]

    @property
    def second(self) -> float:
        """The number of the second argument."""
        return self.numbers[1]

    def size(self, dim: int) -> int:
        """The size of the first tensor in one dimension."""
        return int(self.args[0].size(dim)) if self.args[0].dim() else 1


Rule = Callable[[Call], float]


def _compare(compare: Callable[[float, float], bool]) -> Rule:
    return lambda call: float(compare(call.first, call.second))


def _same(call: Call) -> float:
    return call.first


def _alike(call: Call) -> float:
    numbers = call.numbers[: len(call.args[0])]
    return call.first if len(set(numbers)) == 1 else math.nan


def _divide(call: Call) -> float:
    quotient = call.first / call.second
    mode = call.kwargs.get("rounding_mode")
    if mode is None:
        return quotient
    return float(math.floor(quotient) if mode == "floor" else math.trunc(quotient))


def _clamp(call: Call) -> float:
    low, high = (*call.args[1:3], None, None)[:2]
    low, high = call.kwargs.get("min", low), call.kwargs.get("max", high)
    if not all(bound is None or isinstance(bound, (int, float)) for bound in (low, high)):
        return math.nan
    number = call.first if low is None else max(call.first, low)
    return number if high is None else min(number, high)


def _bit(function: Callable[[int, int], int]) -> Rule:
    return lambda call: float(function(int(call.first), int(call.second)))


def _math(function: Callable[[float], float]) -> Rule:
    return lambda call: float(function(call.first))


PREDICATES: dict[str, Rule] = {name: _compare(compare) for name, compare in COMPARISONS.items()} | {
    "logical_and": lambda call: float(bool(call.first) and bool(call.second)),
    "logical_or": lambda call: float(bool(call.first) or bool(call.second)),
    "logical_xor": lambda call: float(bool(call.first) != bool(call.second)),
    "logical_not": lambda call: float(not call.first),
    "bitwise_and": _bit(operator.and_),
    "bitwise_or": _bit(operator.or_),
    "bitwise_xor": _bit(operator.xor),
    "bitwise_not": lambda call: (
        float(not call.first) if str(call.args[0].dtype) == "torch.bool" else ~int(call.first)
    ),
    "isnan": lambda call: float(math.isnan(call.first)),
    "isinf": lambda call: float(math.isinf(call.first)),
    "isposinf": lambda call: float(call.first == math.inf),
    "isneginf": lambda call: float(call.first == -math.inf),
}
"""Rules with flags as results."""
TELLING: dict[str, Rule] = PREDICATES | {
    **dict.fromkeys(("max", "min", "amax", "amin", "mean"), _same),
    "all": lambda call: float(call.first != 0 or not call.num_folded),
    "any": lambda call: float(call.first != 0 and call.num_folded > 0),
    "sum": lambda call: call.first * call.num_folded,
    **dict.fromkeys(("dot", "vdot"), lambda call: call.first * call.second * call.num_folded),
    "prod": lambda call: call.first**call.num_folded,
    "count_nonzero": lambda call: float(call.first != 0) * call.num_folded,
    "_softmax": lambda call: 1 / call.size(call.args[1]),
    "_log_softmax": lambda call: -math.log(call.size(call.args[1])),
    "_sample_dirichlet": lambda call: 1 / call.size(-1),
    "bernoulli": lambda call: 1.0,
    "poisson": lambda call: 1.0,
    "binomial": _same,
}
"""Operations whose rules apply even if all tensors have only the policy's numbers."""
RULES: dict[str, Rule] = TELLING | {
    **dict.fromkeys(
        ("clone", "_to_copy", "gather", "index_select", "index", "masked_select", "flip", "roll",
         "repeat", "embedding"),
        _same,
    ),
    **dict.fromkeys(("cat", "stack"), _alike),
    "copy": lambda call: call.second,
    "add": lambda call: call.first + call.kwargs.get("alpha", 1) * call.second,
    "sub": lambda call: call.first - call.kwargs.get("alpha", 1) * call.second,
    "rsub": lambda call: call.second - call.first,
    "mul": lambda call: call.first * call.second,
    "div": _divide,
    "floor_divide": lambda call: float(call.first // call.second),
    "remainder": lambda call: call.first % call.second,
    "pow": lambda call: call.first**call.second,
    "neg": lambda call: -call.first,
    "abs": lambda call: abs(call.first),
    "maximum": lambda call: max(call.numbers),
    "minimum": lambda call: min(call.numbers),
    "clamp": _clamp,
    "clamp_min": lambda call: max(call.first, call.second),
    "clamp_max": lambda call: min(call.first, call.second),
    **{name: _math(getattr(math, name)) for name in (
        "exp", "expm1", "log", "log10", "log2", "log1p", "sqrt", "tanh", "ceil", "floor",
    )},
    "rsqrt": lambda call: 1 / math.sqrt(call.first),
    "sigmoid": lambda call: 1 / (1 + math.exp(-call.first)),
    "reciprocal": lambda call: 1 / call.first,
    "zero": lambda call: 0.0,
    "fill": lambda call: call.second,
}  # fmt: skip
"""The rules by the name of an operation, without the underscore of the in-place variant."""
CONSTANTS: dict[str, Callable[[Any], float]] = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), lambda args: 0.0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), lambda args: 1.0),
    **dict.fromkeys(("full_like",), lambda args: float(args[1])),
    "full": lambda args: float(args[1]),
    "new_full": lambda args: float(args[2]),
}
"""Operations that make a uniform tensor; its number is true, not assumed."""


@functools.cache
def base_name(op: Any) -> str:
    """The name of an operation, without its namespace and the underscore of in-place variants."""
    name = str(op._schema.name).partition("::")[2]
    return name.rstrip("_") if name.endswith("_") and not name.endswith("__") else name


def overloads(aten: Any, names: Iterable[str]) -> set[Any]:
    """The operations with these names, including in-place variants."""
    packets = [getattr(aten, f"{name}{end}", None) for name in names for end in ("", "_")]
    return {
        getattr(packet, overload)
        for packet in packets
        if packet is not None
        for overload in packet.overloads()
    }
