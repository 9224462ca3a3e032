"""A proof, from its operators, that a module treats each position of its input independently.

The module's forward runs on fake tensors. They have shapes and no values, so weights that are zero
do not count as proof. Each ATen operator that it calls must have a known rule (position_rules.py).
The rule says where positions are in the result, and raises `Mixes` if one position would be
computed from another. A tensor without positions, such as a weight, must not have their length
where it is combined with them.

The forward is traced for the full length and for each length of a tile, and the traces must be the
same program: the same operators with the same numbers, apart from shapes. There is no proof for a
module that computes with the number of positions, or branches on it. Nor for one that writes to its
attributes, to buffers or to its input, draws random numbers, reads values, has hooks on submodules,
or has a custom autograd function.

    reason = why_not(module.forward, inputs, lengths=(4, 3))     # "" if it is proved
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ullage.act.techniques.means.position_rules import Along, Mixes, follow, is_drawn, shape_without
from ullage.act.techniques.means.python_state import PythonState

POSITIONS = -2
"""The dimension of positions: (batch, ..., positions, features)."""

_GRADIENTS = frozenset({"register_hook", "retain_grad", "backward", "requires_grad_"})
_KINDS = ("Tensor", "Parameter", "FakeTensor")


def why_not(forward: Callable[[Any], Any], inputs: Any, lengths: Sequence[int]) -> str:
    """Why positions of a module are not proved independent; "" if they are.

    Args:
        forward: a method of the module.
        inputs: its argument, of shape (batch, ..., positions, features).
        lengths: the lengths of the tiles, each two positions or more.
    """
    module: Any = forward.__self__  # type: ignore[attr-defined]
    if type(inputs).__name__ not in _KINDS:
        return f"is given a {type(inputs).__name__}, whose operators are not seen"
    forbidden = hooked(module)
    if forbidden:
        return forbidden
    for _ in range(2):
        reason, has_drawn = _follow(forward, inputs, lengths)
        if reason or not has_drawn:
            return reason
    return "draws random numbers"


def _follow(forward: Callable[[Any], Any], inputs: Any, lengths: Sequence[int]) -> tuple[str, bool]:
    """Why it is not proved, and whether random numbers of Python or NumPy were drawn. A package
    that the first call imports may also draw some.
    """
    state = PythonState(forward.__self__)  # type: ignore[attr-defined]
    try:
        with _apart():
            whole, *others = [
                _Run(forward, inputs, length).program
                for length in dict.fromkeys((inputs.shape[POSITIONS], *lengths))
            ]
    except Mixes as error:
        return str(error), False
    except Exception as error:
        message = (str(error).splitlines() or [""])[0]
        return f"cannot be followed without values ({type(error).__name__}: {message})", False
    finally:
        changed, has_drawn = state.changes() + state.parts_added(), state.has_drawn()
        state.put_back()
    if changed:
        return f"writes to {changed[0]}", False
    reasons = (_difference(whole, other) for other in others)
    return next((why for why in reasons if why), ""), has_drawn


def hooked(module: Any) -> str:
    """Why hooks prevent a proof; "" if none do. Hooks of the module itself run only once."""
    from torch.nn.modules import module as hooks

    for path, part in module.named_modules():
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
            if path and getattr(part, name, None):
                return f"has a hook on {path}"
    for hook in _global_hooks(hooks):
        if not str(getattr(hook, "__module__", "")).startswith("ullage."):
            return "is called with a hook on all modules"
    return ""


def _global_hooks(hooks: Any) -> Iterator[Any]:
    for name in ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_hooks"):
        yield from getattr(hooks, name, {}).values()


@contextmanager
def _apart() -> Iterator[None]:
    """Hides the traced run from modes, global hooks and the autocast cache."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks
    from torch.nn.modules import module as hooks
    from torch.utils._python_dispatch import _disable_current_modes

    has_cache = torch.is_autocast_cache_enabled()
    with ExitStack() as stack:
        for name in ("_global_forward_pre_hooks", "_global_forward_hooks"):
            known = getattr(hooks, name)
            stack.callback(known.update, dict(known))
            known.clear()
        torch.set_autocast_cache_enabled(False)
        stack.callback(torch.set_autocast_cache_enabled, has_cache)
        stack.enter_context(_disable_current_modes())
        # Only the topmost hooks are called: these save nothing, as there is no backward. Otherwise
        # a result that its own node saves would never be freed, nor its parameters.
        stack.enter_context(saved_tensors_hooks(_keep_nothing, _keep_nothing))
        yield


def _keep_nothing(_: Any) -> None:
    return None


class _Run:
    """A traced forward on `length` positions.

    Attributes:
        program: the trace, with one entry per operator.
    """

    def __init__(self, forward: Any, inputs: Any, length: int) -> None:
        import torch._dynamo
        from torch._subclasses.fake_tensor import FakeTensorMode

        # Fake tensors import the settings of the compiler. If the compiler is loaded lazily, it
        # must be loaded before.
        _ = torch._dynamo.config
        self.program: list[Any] = []
        self._length = length
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []  # so that no address is used twice
        self._along: dict[int, Along | None] = {}
        self._own: set[int] = set()
        with FakeTensorMode(allow_non_fake_inputs=True):
            tile = _like(inputs, length)
            self._note(tile, Along(tile.dim() + POSITIONS, 1, 1), is_own=False)
            with _mode()(self), _functions()():
                output = forward(tile)
            self._check_output(tile, output)

    def call(self, operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Runs an operator, and determines where positions are in its results."""
        import torch

        if operation._schema.name == "prim::device":  # a property of a fake tensor, not a value
            return operation(*arguments, **keywords)
        tensors = [leaf for leaf in _flat((arguments, keywords)) if isinstance(leaf, torch.Tensor)]
        along = [self._of(tensor) for tensor in tensors]
        before = list(zip(tensors, along, strict=True))
        result = operation(*arguments, **keywords)
        results = [leaf for leaf in _flat(result) if isinstance(leaf, torch.Tensor)]
        if is_drawn(operation) and "attention" not in operation._schema.name:
            raise Mixes("draws random numbers")
        place = {id(tensor): where for tensor, where in before}
        places = (
            follow(operation, (arguments, keywords), results, place, self._length)
            if any(along)
            else [None] * len(results)
        )
        self._check_written(operation, arguments, keywords, places)
        shared = {_storage(tensor) for tensor in tensors}
        self._enter(operation, arguments, keywords, results, places)
        for made_tensor, where in zip(results, places, strict=True):
            self._note(made_tensor, where, is_own=_storage(made_tensor) not in shared)
        return result

    def _of(self, tensor: Any) -> Along | None:
        """Where positions are in an argument of an operator."""
        if id(tensor) in self._numbers:
            return self._along[id(tensor)]
        if type(tensor).__name__ not in _KINDS:
            raise Mixes(f"computes with a {type(tensor).__name__}, whose operators are not seen")
        if type(tensor).__name__ == "FakeTensor":
            raise Mixes("computes with a tensor whose origin was not seen")
        self._note(tensor, None, is_own=False)
        return None

    def _note(self, tensor: Any, along: Along | None, *, is_own: bool) -> None:
        if id(tensor) in self._numbers:
            return
        self._numbers[id(tensor)] = len(self._numbers)
        self._held.append(tensor)
        self._along[id(tensor)] = along
        if is_own:
            self._own.add(_storage(tensor))

    def _check_written(
        self,
        operation: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        places: Sequence[Any],
    ) -> None:
        """Raises Mixes if an operator writes to a tensor that the module did not create."""
        for number, argument in enumerate(operation._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            into = arguments[number] if number < len(arguments) else keywords.get(argument.name)
            for tensor in _flat(into):
                if _storage(tensor) not in self._own:
                    raise Mixes("changes its input, a parameter or a buffer in place")
                if any(where != self._along[id(tensor)] for where in places):
                    raise Mixes(f"writes positions where none were ({operation})")

    def _enter(
        self,
        operation: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        results: list[Any],
        places: Sequence[Along | None],
    ) -> None:
        import torch

        shapes = [
            (where, shape_without(result, where, self._length))
            for result, where in zip(results, places, strict=True)
        ]
        tells_shape = any(places) and shape_tells_all(operation)
        words = [
            ("tensor", self._numbers[id(leaf)]) if isinstance(leaf, torch.Tensor) else repr(leaf)
            for leaf in _flat((arguments, keywords))
            if isinstance(leaf, torch.Tensor) or not tells_shape
        ]
        self.program.append((str(operation), words, shapes))

    def _check_output(self, inputs: Any, output: Any) -> None:
        """Raises Mixes unless the output is one tensor with positions in the same dimension."""
        import torch

        if not isinstance(output, torch.Tensor) or id(output) not in self._numbers:
            raise Mixes(f"returns {type(output).__name__}, and no tensor that it has computed")
        if self._along[id(output)] != Along(output.dim() + POSITIONS, 1, 1) or (
            output.shape[:-1] != inputs.shape[:-1]
        ):
            raise Mixes(f"makes {tuple(output.shape)} of {tuple(inputs.shape)}")
        if _storage(output) == _storage(inputs):
            raise Mixes("returns its input")
        if any(
            isinstance(node, torch.autograd.function.BackwardCFunction) for node in _nodes(output)
        ):
            raise Mixes("has a backward of its own (torch.autograd.Function)")
        self.program.append(("output", self._numbers[id(output)], ()))


def _like(inputs: Any, length: int) -> Any:
    """A fake tensor with the layout of a tile of `length` positions."""
    import torch

    whole = torch.empty_strided(
        inputs.size(), inputs.stride(), dtype=inputs.dtype, device=inputs.device
    ).requires_grad_(inputs.requires_grad)
    whole = whole.clone() if inputs.is_contiguous() else whole  # no leaf, as in a model
    return laid_out(whole.narrow(POSITIONS, 0, length), are_contiguous=whole.is_contiguous())


def laid_out(tile: Any, *, are_contiguous: bool) -> Any:
    """A tile, contiguous if the inputs are: operators treat other layouts differently."""
    return tile.contiguous() if are_contiguous else tile


def shape_tells_all(operation: Any) -> bool:
    """True if the shape of the result contains all information of an operator's numbers."""
    return operation._schema.name in {
        "aten::view", "aten::_unsafe_view", "aten::reshape", "aten::expand",
        "aten::_reshape_alias",
    }  # fmt: skip


def _difference(program: list[Any], other: list[Any]) -> str:
    """Why two traces are not the same program; "" if they are."""
    for ours, theirs in zip(program, other, strict=False):
        if ours[0] != theirs[0]:
            return f"runs {ours[0]} or {theirs[0]} by the number of positions"
        if ours != theirs:
            return f"computes with the number of positions ({ours[0]})"
    return "" if len(program) == len(other) else "does more or less by the number of positions"


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for element in value:
            yield from _flat(element)
    elif isinstance(value, dict):
        for name, element in sorted(value.items()):
            yield name
            yield from _flat(element)
    else:
        yield value


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _nodes(output: Any) -> Iterator[Any]:
    waiting, visited = [output.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


@functools.cache
def _mode() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Following(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self, run: _Run) -> None:
            super().__init__()
            self._run = run

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return self._run.call(func, args, kwargs or {})

    return Following


@functools.cache
def _functions() -> Any:
    from torch.overrides import TorchFunctionMode

    class Seeing(TorchFunctionMode):  # type: ignore[misc]
        """Refuses functions that change gradients and are not operators."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(func, "__name__", "")
            if name in _GRADIENTS:
                raise Mixes(f"has a say in gradients ({name})")
            return func(*args, **(kwargs or {}))

    return Seeing
