"""Rules that say where positions are in the result of an ATen operator, for operators that keep
positions apart.

The rules are a list of operators that are known to be correct; every other operator is treated as
mixing positions. Positions are in one dimension of a tensor, which may be merged with others: index
i of it belongs to position i // inner % length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple


class Mixes(Exception):
    """Why the positions of a module are not independent, or not known to be."""


class Along(NamedTuple):
    """Where the positions of a tensor are.

    Attributes:
        dim: the dimension, counted from the first.
        outer: the number of repetitions of all positions in it.
        inner: the number of adjacent entries of each position.
    """

    dim: int
    outer: int
    inner: int


Place = Mapping[int, Along | None]
"""By the id of a tensor, where its positions are; None: it has none."""


class Call(NamedTuple):
    """A call of an operator.

    Attributes:
        name: without namespace and overload.
        values: its arguments by name.
        place: where the positions of its tensors are.
        results: the tensors that it returned.
        length: the number of positions.
    """

    name: str
    values: Mapping[str, Any]
    place: Place
    results: Sequence[Any]
    length: int

    def along(self, name: str) -> Along | None:
        """Where positions are in an argument."""
        value = self.values.get(name)
        return None if value is None else self.place[id(value)]

    def refuse(self) -> Mixes:
        """The error to raise if positions mix."""
        return Mixes(f"lets positions meet in {self.name!r}")


Rule = Callable[[Call], Sequence[Along | None]]

_POINTWISE = frozenset((
    "abs", "acos", "acosh", "add", "addcdiv", "addcmul", "asin", "asinh", "atan", "atan2",
    "atanh", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "celu", "clamp",
    "clamp_max", "clamp_min", "clone", "copysign", "cos", "cosh", "deg2rad", "detach", "div",
    "elu", "eq", "erf", "erfc", "exp", "exp2", "expm1", "fill", "floor", "floor_divide", "fmax",
    "fmin", "fmod", "frac", "ge", "gelu", "gt", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "hypot", "isfinite", "isinf", "isnan", "le", "leaky_relu", "lerp", "lift_fresh",
    "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "lt", "masked_fill", "maximum", "minimum",
    "mish", "mul", "nan_to_num", "ne", "neg", "ones_like", "positive", "pow", "rad2deg",
    "reciprocal", "relu", "relu6", "remainder", "round", "rsqrt", "rsub", "selu", "sgn",
    "sigmoid", "sign", "signbit", "silu", "sin", "sinc", "sinh", "softplus", "softshrink",
    "sqrt", "square", "sub", "tan", "tanh", "threshold", "trunc", "where", "xlogy", "zero",
    "zeros_like", "full_like", "empty_like", "alias", "_to_copy", "_conj_physical",
    "special_xlog1py", "copy", "_prelu_kernel", "contiguous",
))  # fmt: skip
# (input, dim, keepdim)
_REDUCING = frozenset((
    "sum", "mean", "amax", "amin", "var", "std", "var_mean", "std_mean", "logsumexp",
    "linalg_vector_norm", "norm", "all", "any", "max", "min", "prod", "argmax", "argmin",
))  # fmt: skip
# (input, dim): as long as the input in all other dimensions.
_IN_ONE_DIM = frozenset((
    "_softmax", "_log_softmax", "cumsum", "cumprod", "sort", "topk", "glu", "flip", "gather",
))  # fmt: skip


def follow(
    operation: Any, arguments: tuple[Any, Any], results: Sequence[Any], place: Place, length: int
) -> Sequence[Along | None]:
    """Where positions are in each result of an operator call.

    Args:
        operation: an overload.
        arguments: positional arguments, and keyword arguments.
        results: the tensors that it returned.
        place: where the positions of its tensors are.
        length: the number of positions.

    Raises:
        Mixes: the operator mixes positions, or is not known to keep them apart.
    """
    positional, keywords = arguments
    schema = operation._schema
    namespace, _, name = schema.name.partition("::")
    name = name.removesuffix("_") if schema.is_mutable else name
    values = {argument.name: argument.default_value for argument in schema.arguments}
    values |= dict(
        zip((argument.name for argument in schema.arguments), positional, strict=False)
    ) | dict(keywords)
    rule = _RULES.get(name) if namespace == "aten" else None
    if rule is None or (schema.overload_name.endswith(("out", "dtype")) and name == "view"):
        raise Mixes(f"runs {schema.name}, which is not known to keep positions apart")
    call = Call(name, values, place, results, length)
    places = rule(call)
    for tensor, along in zip(results, places, strict=True):
        if along is not None and tensor.shape[along.dim] != along.outer * length * along.inner:
            raise call.refuse()
    return places


def is_drawn(operation: Any) -> bool:
    """True if an operator draws random numbers."""
    import torch

    return torch.Tag.nondeterministic_seeded in operation.tags


def shape_without(tensor: Any, along: Along | None, length: int) -> tuple[int, ...]:
    """A tensor's shape without the number of positions."""
    sizes = list(tensor.shape)
    if along is not None:
        sizes[along.dim] //= length
    return tuple(sizes)


def _pointwise(call: Call) -> Sequence[Along | None]:
    """Each element of the result depends on the elements at the same place, after broadcasting."""
    tensors = [value for value in call.values.values() if hasattr(value, "untyped_storage")]
    sides = [
        (tensor.dim() - along.dim, along)
        for tensor in tensors
        if (along := call.place[id(tensor)]) is not None
    ]
    ((from_right, along), *others) = sides
    if any((right, *place[1:]) != (from_right, *along[1:]) for right, place in others):
        raise call.refuse()
    for tensor in tensors:
        is_there = tensor.dim() >= from_right and tensor.shape[-from_right] != 1
        if call.place[id(tensor)] is None and is_there:
            raise Mixes("computes with a tensor that has values for positions")
    return [along._replace(dim=result.dim() - from_right) for result in call.results]


def _dims(call: Call, name: str = "dim") -> list[int]:
    """The dimensions that an argument names, counted from the first."""
    value = call.values.get(name)
    if value is None or value == []:
        raise call.refuse()  # all of them
    dims = value if isinstance(value, list | tuple) else [value]
    total = _input(call).dim()
    return [dim % total for dim in dims]


def _input(call: Call) -> Any:
    return call.values["self"]


def _known(call: Call, name: str = "self") -> Along:
    """Where positions are in the only argument that may have them."""
    along = call.along(name)
    others = [
        key
        for key, value in call.values.items()
        if key != name and hasattr(value, "untyped_storage") and call.along(key) is not None
    ]
    if along is None or others:
        raise call.refuse()
    return along


def _reducing(call: Call) -> Sequence[Along | None]:
    along, dims = _known(call), _dims(call)
    if along.dim in dims:
        raise call.refuse()
    lost = 0 if call.values.get("keepdim") else sum(dim < along.dim for dim in dims)
    return [along._replace(dim=along.dim - lost)] * len(call.results)


def _in_one_dim(call: Call) -> Sequence[Along | None]:
    index = call.values.get("index")
    along = call.along("self")
    if along is None or (index is not None and call.along("index") != along):
        raise call.refuse()
    if along.dim in _dims(call, "dims" if "dims" in call.values else "dim"):
        raise call.refuse()
    return [along] * len(call.results)


def _normalised(call: Call) -> Sequence[Along | None]:
    """Norms over the last dimensions."""
    along = _known(call, "input")
    if along.dim >= call.values["input"].dim() - len(call.values["normalized_shape"]):
        raise call.refuse()
    return [along] * len(call.results)


def _product(call: Call) -> Sequence[Along | None]:
    """(n, k) @ (k, m), possibly batched: positions may be in n, in m, or in the batch."""
    is_added = call.name in {"addmm", "baddbmm"}
    left, right = ("mat1", "mat2") if call.name == "addmm" else _names_of_factors(call)
    ours, theirs = call.along(left), call.along(right)
    last = call.values[left].dim() - 1
    if ours is not None and theirs is not None:
        if ours != theirs or last < 2 or ours.dim != 0:
            raise call.refuse()
        product = ours
    elif ours is not None:
        if ours.dim != last - 1:
            raise call.refuse()
        product = ours
    elif theirs is not None and theirs.dim == last:
        product = theirs
    else:
        raise call.refuse()
    return [product] if not is_added else [_with_added(call, product)]


def _names_of_factors(call: Call) -> tuple[str, str]:
    return ("batch1", "batch2") if call.name == "baddbmm" else ("self", "mat2")


def _with_added(call: Call, product: Along) -> Along:
    """A product plus a tensor that has the same positions, or none."""
    (result,) = call.results
    added = _input(call)
    from_right = result.dim() - product.dim
    along = call.along("self")
    if along is None:
        if added.dim() >= from_right and added.shape[-from_right] != 1:
            raise Mixes("computes with a tensor that has values for positions")
    elif (added.dim() - along.dim, *along[1:]) != (from_right, *product[1:]):
        raise call.refuse()
    return product


def _viewed(call: Call) -> Sequence[Along | None]:
    """Another shape of the same elements in the same order."""
    along = _known(call)
    (result,) = call.results
    ours = _input(call).shape
    inner = along.inner * prod(ours[along.dim + 1 :])
    stride = 1
    for dim in reversed(range(result.dim())):
        size = result.shape[dim]
        if inner % stride == 0 and (stride * size) % (inner * call.length) == 0:
            own = inner // stride
            return [Along(dim, size // (own * call.length), own)]
        stride *= size
    raise call.refuse()


def _expanded(call: Call) -> Sequence[Along | None]:
    along = _known(call)
    return [along._replace(dim=along.dim + call.results[0].dim() - _input(call).dim())]


def _unsqueezed(call: Call) -> Sequence[Along | None]:
    along = _known(call)
    dim = call.values["dim"] % (_input(call).dim() + 1)
    return [along._replace(dim=along.dim + (dim <= along.dim))]


def _squeezed(call: Call) -> Sequence[Along | None]:
    along = _known(call)
    sizes = _input(call).shape
    dims = range(len(sizes)) if call.values.get("dim") is None else _dims(call)
    lost = sum(sizes[dim] == 1 and dim < along.dim for dim in dims)
    return [along._replace(dim=along.dim - lost)]


def _turned(call: Call) -> Sequence[Along | None]:
    along, total = _known(call), _input(call).dim()
    order = list(range(total))
    if call.name == "permute":
        order = [dim % total for dim in call.values["dims"]]
    elif call.name == "transpose":
        first, other = call.values["dim0"] % total, call.values["dim1"] % total
        order[first], order[other] = order[other], order[first]
    else:  # t
        order.reverse()
    return [along._replace(dim=order.index(along.dim))]


def _cut(call: Call) -> Sequence[Along | None]:
    """A slice along another dimension, or the whole of this one."""
    along = _known(call)
    (dim,) = _dims(call)
    is_whole = call.name == "slice" and all(
        result.shape == _input(call).shape and call.values["step"] == 1 for result in call.results
    )
    if dim == along.dim and not is_whole:
        raise call.refuse()
    lost = int(call.name in {"select", "unbind"} and dim < along.dim)
    return [along._replace(dim=along.dim - lost)] * len(call.results)


def _joined(call: Call) -> Sequence[Along | None]:
    tensors = call.values["tensors"]
    places = {call.place[id(tensor)] for tensor in tensors}
    (result,) = call.results
    along = next(iter(places))
    if along is None or len(places) > 1:
        raise Mixes("joins a tensor without positions to those with")
    dim = call.values["dim"] % result.dim()
    if call.name == "cat":
        if dim == along.dim:
            raise call.refuse()
        return [along]
    return [along._replace(dim=along.dim + (dim <= along.dim))]


def _looked_up(call: Call) -> Sequence[Along | None]:
    if call.values.get("scale_grad_by_freq"):
        raise call.refuse()  # in backward
    return [_known(call, "indices")]


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_POINTWISE, _pointwise),
    **dict.fromkeys(_REDUCING, _reducing),
    **dict.fromkeys(_IN_ONE_DIM, _in_one_dim),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), _normalised),
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), _product),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), _viewed),
    **dict.fromkeys(("transpose", "permute", "t"), _turned),
    **dict.fromkeys(("slice", "select", "split", "split_with_sizes", "unbind", "chunk"), _cut),
    **dict.fromkeys(("cat", "stack"), _joined),
    "expand": _expanded,
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "embedding": _looked_up,
}
