"""Logits that are computed only if something other than their loss needs them.

The head returns a tensor with the shape and dtype of the logits, but without values. The program
can change its layout (`view`, `transpose`, `[:, :-1]`, `float`), and `cross_entropy` of it is
computed by a function from the input of the head. For every other operation (an accuracy by
`argmax`) the logits are computed. If a gradient would flow through such an operation, it is
refused.

    logits = late_logits(source)
    functional.cross_entropy(logits.flatten(0, 1), targets)    # source.take_loss(...)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from ullage.act.techniques.means.nested import tensors

# Attributes that depend on values, not on shape, dtype or device.
_VALUES = frozenset({"data", "grad", "T", "mT", "H", "mH", "real", "imag"})
_ABOUT = frozenset(
    {"size", "dim", "ndimension", "numel", "nelement", "element_size", "is_floating_point",
     "is_complex", "stride", "is_contiguous", "get_device", "__len__", "__hash__"}
)  # fmt: skip
# Functions that keep rows complete and in order.
_SHAPED = frozenset(
    {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "view_as"}
)
_TURNED = frozenset(
    {"transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "mT", "T", "t"}
)
_CAST = frozenset({"float", "to", "type", "type_as"})
# Functions that need gradients of the logits, which are never computed.
_UNSEEN = frozenset({"register_hook", "retain_grad", "register_post_accumulate_grad_hook"})


@dataclass(frozen=True, slots=True)
class Source:
    """The inputs from which logits can be computed.

    Attributes:
        features: the input of the head.
        version: the version of that tensor when the head ran.
        hidden: the features in the layout of the logits: features in place of classes.
        head: an `nn.Linear`.
        dtype: the dtype in which the head multiplies.
        take_loss: computes the loss from hidden (rows, features), targets (rows,), a source
            and the keyword arguments of `cross_entropy`; returns None if it cannot.
        refuse: raises a PlanError with a reason.
    """

    features: Any
    version: int
    hidden: Any
    head: Any
    dtype: Any
    take_loss: Callable[..., Any]
    refuse: Callable[[str], NoReturn]

    def logits(self, class_dim: int) -> Any:
        """Computes the logits."""
        import torch

        def cast(tensor: Any) -> Any:
            return None if tensor is None else tensor.to(self.dtype)

        last = self.hidden.movedim(class_dim, -1)
        with torch.autocast(last.device.type, enabled=False):
            logits = torch.nn.functional.linear(
                cast(last), cast(self.head.weight), cast(self.head.bias)
            )
        return logits.movedim(-1, class_dim)


def late_logits(source: Source) -> Any:
    """The logits of a head, classes last, without values."""
    shape = (*source.hidden.shape[:-1], source.head.out_features)
    return _made(source, shape, len(shape) - 1, source.dtype)


def _made(source: Source, shape: tuple[int, ...], class_dim: int, dtype: Any) -> Any:
    import torch

    logits = _kind()(source, shape, class_dim, dtype)
    with torch._C.DisableTorchFunctionSubclass():
        # This covers what torch functions do not see, such as custom autograd functions.
        logits.register_hook(lambda _: source.refuse("a gradient comes to its logits"))
    return logits


@functools.cache
def _kind() -> Any:
    import torch

    class LateLogits(torch.Tensor):  # type: ignore[misc]
        @staticmethod
        def __new__(cls: Any, source: Source, shape: Any, class_dim: int, dtype: Any) -> Any:
            device = source.hidden.device
            wrapper_subclass = torch.Tensor._make_wrapper_subclass(
                cls, shape, dtype=dtype, device=device, requires_grad=True
            )
            wrapper_subclass._late = source, class_dim
            return wrapper_subclass

        @classmethod
        def __torch_function__(
            cls: Any, function: Any, _types: Any, arguments: Any = (), keywords: Any = None
        ) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                return _call(function, arguments, keywords or {})

        @classmethod
        def __torch_dispatch__(
            cls: Any, operation: Any, _types: Any, arguments: Any = (), keywords: Any = None
        ) -> Any:
            (late, *_) = _late_ones((arguments, keywords))
            late._late[0].refuse(f"its logits go into {operation}, besides its loss")

    return LateLogits


def _call(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The result of a torch function that has late logits among its arguments."""
    from torch.nn import functional

    name = function.__name__
    if name == "__get__":
        name = function.__self__.__name__
        if name not in _VALUES:
            return function(*arguments, **keywords)
    if name in _ABOUT:
        return function(*arguments, **keywords)
    late = arguments[0] if arguments and hasattr(arguments[0], "_late") else None
    if function is functional.cross_entropy:
        result = _loss(arguments, keywords)
    elif late is not None and not any(_late_ones((arguments[1:], keywords))):
        result = _laid_out(name, function, late, arguments[1:], keywords)
    else:
        result = None
    return _computed(name, function, arguments, keywords) if result is None else result


def _laid_out(
    name: str, function: Any, late: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Late logits in another layout; None if the function does something else."""
    import torch

    source, class_dim = late._late
    hidden = source.hidden
    if name in _CAST:
        probe = function(
            torch.empty(0, dtype=late.dtype, device=late.device), *arguments, **keywords
        )
        is_wider = probe.dtype in {late.dtype, torch.float32} and late.dtype != torch.float64
        is_here = probe.device == late.device
        return _made(source, late.shape, class_dim, probe.dtype) if is_wider and is_here else None
    if name in _SHAPED and class_dim == late.dim() - 1:
        shape = function(torch.empty(late.shape, device="meta"), *arguments, **keywords).shape
        if not shape or shape[-1] != late.shape[-1]:
            return None
        moved = hidden.reshape(*shape[:-1], hidden.shape[-1])
        class_dim = len(shape) - 1
    elif name in _TURNED or (name == "__getitem__" and _keeps(arguments[0], class_dim, late.dim())):
        moved = function(hidden, *arguments, **keywords)
        # The dimension that grows with one more feature is the one of features, and of classes.
        longer = [size + (dim == class_dim) for dim, size in enumerate(hidden.shape)]
        probe = function(torch.empty(longer, device="meta"), *arguments, **keywords)
        sizes = zip(moved.shape, probe.shape, strict=True)
        (class_dim,) = [index for index, (size, other) in enumerate(sizes) if size != other]
        shape = [*moved.shape]
        shape[class_dim] = source.head.out_features
    else:
        return None
    return _made(replace(source, hidden=moved), shape, class_dim, late.dtype)


def _keeps(index: Any, class_dim: int, num_dims: int) -> bool:
    """True if an index selects all classes, which are the last dimension."""
    index = index if isinstance(index, tuple) else (index,)
    are_plain = all(isinstance(part, slice | int) or part is ... for part in index)
    if class_dim != num_dims - 1 or not are_plain:
        return False
    num_named = sum(part is not ... for part in index)
    if num_named < num_dims and (... not in index or index[-1] is ...):
        return True
    return bool(index[-1] == slice(None))


def _loss(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The loss, computed by the source; None if it cannot."""
    import torch
    from torch.nn import functional

    call = inspect.signature(functional.cross_entropy).bind(*arguments, **keywords)
    call.apply_defaults()
    late, targets = call.arguments.pop("input"), call.arguments.pop("target")
    if not hasattr(late, "_late") or hasattr(targets, "_late"):
        return None
    source, class_dim = late._late
    if class_dim != min(1, late.dim() - 1) or targets.is_floating_point():
        return None
    if source.features._version != source.version:
        source.refuse("the input of its head is changed before the loss")
    rows = source.hidden.movedim(class_dim, -1).reshape(-1, source.hidden.shape[class_dim])
    loss = source.take_loss(rows, targets.reshape(-1), source, **call.arguments)
    is_wide = torch.is_autocast_enabled(late.device.type)
    return loss if loss is None or is_wide else loss.to(late.dtype)


def _computed(
    name: str, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    import torch

    (first, *_) = _late_ones((arguments, keywords))
    refuse = first._late[0].refuse
    if name in _UNSEEN:
        refuse(f"it asks for gradients of its logits ({name})")
    computed: list[tuple[Any, int]] = []

    def logits_of(late: Any) -> Any:
        source, class_dim = late._late
        logits = source.logits(class_dim).to(late.dtype)
        computed.append((logits, logits._version))
        return logits

    result = function(*_replaced(arguments, logits_of), **_replaced(keywords, logits_of))
    if any(logits._version != version for logits, version in computed):
        refuse(f"it changes its logits in place ({name})")
    outputs = [tensor for tensor in tensors(result) if tensor.requires_grad]
    if outputs and torch.is_grad_enabled():
        refuse(f"its logits go into {name!r}, besides its loss")
    return result


def _late_ones(value: Any) -> Iterator[Any]:
    return (tensor for tensor in tensors(value) if hasattr(tensor, "_late"))


def _replaced(value: Any, logits_of: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_replaced(element, logits_of) for element in value)
    if isinstance(value, dict):
        return {name: _replaced(element, logits_of) for name, element in value.items()}
    return logits_of(value) if hasattr(value, "_late") else value
