"""Activation checkpointing that saves the results of expensive operations.

A policy selects the operations whose results are saved; the rest is recomputed in backward.
Expensive operations are the *products*: matrix products, convolutions and attention. A policy names
kinds of products, or some products by their order within a call of the module: "0,2,3". Choices of
experts (`topk`) are always saved, because they must not change, and so are collectives, which all
ranks would have to repeat. Operations that draw random numbers are never saved: the second run
draws all numbers again from the same state, and a skipped operation would shift the numbers after
it.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.act.techniques.means.nested import tensors
from ullage.act.techniques.means.rerun import Rerun, checkpointed
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique
from ullage.ground.errors import PlanError

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

_MATMULS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_mm", "_grouped_mm")
_ATTENTIONS = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
_KINDS = ("matmul_and_attention", "matmul", "attention", "second_matmul")
_ALWAYS = ("topk",)
_COLLECTIVES = "_c10d_functional"


class _Policy:
    """Decides what one call of a module saves, identically in both runs."""

    def __init__(self, saves: str) -> None:
        self._saves = saves
        self._numbers = read_numbers(saves)
        self._met: Counter[tuple[bool, bool]] = Counter()
        self.is_saved = False  # for the last operation

    def __call__(self, context: Any, operation: Any, *arguments: Any, **keywords: Any) -> Any:
        from torch.utils.checkpoint import CheckpointPolicy

        namespace, _, name = operation._schema.name.partition("::")
        is_saved = (
            self._is_expensive(name, context.is_recompute)
            if namespace == "aten"
            else namespace == _COLLECTIVES and name != "wait_tensor"
        )
        if not is_saved:
            return CheckpointPolicy.PREFER_RECOMPUTE
        if not _draws(operation, arguments, keywords):
            self.is_saved = True
            return CheckpointPolicy.MUST_SAVE
        if self._numbers:
            raise PlanError(
                f"selective_checkpoint.saves is {self._saves!r}; product "
                f"{self._num_met(context.is_recompute) - 1} draws random numbers ({name}), "
                "and must be recomputed"
            )
        return CheckpointPolicy.PREFER_RECOMPUTE

    def check(self) -> None:
        """Raises PlanError if the first run had fewer products than the policy names."""
        num = self._num_met(is_recompute=False)
        missing = [str(number) for number in self._numbers if number >= num]
        if missing:
            raise PlanError(
                f"selective_checkpoint.saves is {self._saves!r}; a call of a module has {num} "
                f"products, numbered from 0, and none with the number {', '.join(missing)}"
            )

    def _is_expensive(self, name: str, is_recompute: bool) -> bool:  # noqa: FBT001 - as torch has it
        if name in _ALWAYS:
            return True
        if not is_product(name):
            return False
        number, is_matmul = self._num_met(is_recompute), name in _MATMULS
        self._met[is_recompute, is_matmul] += 1
        if self._numbers:
            return number in self._numbers
        if self._saves == "second_matmul":
            return is_matmul and self._met[is_recompute, True] % 2 == 1
        return self._saves in {"matmul_and_attention", "matmul" if is_matmul else "attention"}

    def _num_met(self, is_recompute: bool) -> int:  # noqa: FBT001 - as torch has it
        return self._met[is_recompute, True] + self._met[is_recompute, False]


def is_product(name: str) -> bool:
    """True if an operation of ATen is a product."""
    return name in _MATMULS or name in _ATTENTIONS


def read_numbers(saves: str) -> tuple[int, ...]:
    """The numbers of the products that are saved, from "0,2,3"; empty for the name of a kind.

    Raises:
        PlanError: it is neither.
    """
    if saves in _KINDS:
        return ()
    words = saves.split(",")
    if not all(word.isdecimal() for word in words):
        raise PlanError(
            f"selective_checkpoint.saves is {saves!r}; expected one of {', '.join(_KINDS)}, or the "
            "numbers of products in the order of a call, such as '0,2,3'"
        )
    return tuple(map(int, words))


def _draws(operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    import torch

    if torch.Tag.nondeterministic_seeded not in operation.tags:
        return False
    schema = operation._schema.arguments
    defaults = {
        parameter.name: parameter.default_value for parameter in schema
    }  # the dispatcher leaves them out
    positional = dict(zip((parameter.name for parameter in schema), arguments, strict=False))
    return bool((defaults | positional | keywords).get("dropout_p", 1.0))


def _apply(target: Target, action: Action) -> None:
    from torch.utils.checkpoint import checkpoint

    saves = str(SELECTIVE_CHECKPOINT.value_of(action, "saves"))
    # Created once: for a new object the compiler would compile again.
    how: dict[str, Any] = {"context_fn": functools.partial(_contexts, saves)}
    how |= _offloaded_too(checkpoint)
    for path in action.modules:
        target.wrap_forward(path, functools.partial(_run, how))


def _run(how: dict[str, Any], forward: Any, *arguments: Any, **keywords: Any) -> Any:
    import torch
    from torch.utils.checkpoint import checkpoint

    if not torch.is_grad_enabled():
        return forward(*arguments, **keywords)
    if torch.compiler.is_compiling():
        return checkpoint(forward, *arguments, use_reentrant=False, **how, **keywords)
    return checkpointed(_Explained(Rerun(forward, keeps_results=True)), arguments, keywords, **how)


def _contexts(saves: str) -> Any:
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    policy = _Policy(saves)
    first, again = create_selective_checkpoint_contexts(policy)
    # torch checks their classes, so they cannot be wrapped.
    kinds: Any = type(first), type(again)
    first_kind, again_kind = _checking(*kinds)
    first.__class__, again.__class__ = first_kind, again_kind
    first.look = again.look = _Look(policy)
    return first, again


class _Look:
    """Watches the results that the first run of a call saves.

    torch detects in-place changes by the version of a tensor. A result of `_unsafe_view`, which
    follows many products, shares the memory of a saved tensor but not its version. It is watched
    here.
    """

    def __init__(self, policy: _Policy) -> None:
        self._policy = policy
        self._kept: set[int] = set()
        self._aliases: list[tuple[Any, int]] = []

    def run(self, call: Any, operation: Any, arguments: Any, keywords: Any) -> Any:
        schema = operation._schema
        if schema.is_mutable:
            for value, argument in zip(arguments, schema.arguments, strict=False):
                is_written = argument.alias_info is not None and argument.alias_info.is_write
                if is_written and not self._kept.isdisjoint(_storages(value)):
                    _refuse_changes()
        self._policy.is_saved = False
        result = call()
        if self._policy.is_saved:
            self._kept.update(_storages(result))
        elif schema.name == "aten::_unsafe_view" and not self._kept.isdisjoint(_storages(result)):
            self._aliases.append((alias := _same_version(result), alias._version))
        return result

    def check_first(self) -> None:
        self._policy.check()

    def check_again(self) -> None:
        """Runs before the second run."""
        if any(alias._version != version for alias, version in self._aliases):
            _refuse_changes()


@functools.cache
def _checking(first: Any, again: Any) -> tuple[Any, Any]:
    """The contexts of the first and the second run, with a `_Look` at their operations."""

    class First(first):  # type: ignore[misc]
        look: _Look

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            call = functools.partial(super().__torch_dispatch__, func, types, args, kwargs)
            return self.look.run(call, func, args, kwargs)

        def __exit__(self, error: Any, *details: Any) -> None:
            super().__exit__(error, *details)
            if error is None:
                self.look.check_first()

    class Again(again):  # type: ignore[misc]
        look: _Look

        def __enter__(self) -> Any:
            self.look.check_again()
            return super().__enter__()

    return First, Again


def _storages(value: Any) -> list[int]:
    return [
        tensor.untyped_storage()._cdata
        for tensor in tensors(value)
        if tensor.layout is _strided() and not hasattr(tensor, "device_mesh")
    ]


@functools.cache
def _strided() -> Any:
    import torch

    return torch.strided


def _same_version(tensor: Any) -> Any:
    import torch

    key = torch._C.DispatchKey.ADInplaceOrView
    with torch._C._SetExcludeDispatchKeyGuard(key, False):  # noqa: FBT003 - its own interface
        return tensor.detach()


def _refuse_changes() -> NoReturn:
    raise PlanError(
        "'selective_checkpoint' does not go with a module of this program, which changes in place "
        "what is saved; use 'checkpoint' for it"
    ) from None


def _offloaded_too(checkpoint: Any) -> dict[str, bool]:
    """From torch 2.14 on, saved results can be offloaded by hooks around the checkpoint."""
    name = "respect_saved_tensors_hooks"
    return {name: True} if name in inspect.signature(checkpoint).parameters else {}


class _Explained:
    """A forward whose second run explains why it cannot use the saved results."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        try:
            return self._run(*arguments, **keywords)
        except RuntimeError as error:
            if "has been mutated" not in str(error):  # torch has no class of its own for it
                raise
            _refuse_changes()


SELECTIVE_CHECKPOINT = Technique(
    name="selective_checkpoint",
    does="saves the inputs of modules and the results of their expensive operations, and "
    "recomputes the rest in backward",
    precondition="as for checkpoint; saved results are not changed in place",
    proof="as for checkpoint; the writes of each operator of the first run are watched",
    semantics=Semantics.SAME,
    place=Place.MODULES,
    reference="https://docs.pytorch.org/docs/stable/checkpoint.html#torch.utils.checkpoint.create_selective_checkpoint_contexts",
    apply=_apply,
    settings={
        "saves": Setting(
            default="matmul_and_attention",
            what=f"products whose results are saved: {', '.join(_KINDS)}, or numbers in the order "
            "of a call, for example 0,2,3",
            read=read_numbers,
        )
    },
    excludes=("checkpoint", "offload_activations", "tiled_mlp"),
    variants=({"saves": "attention"}, {"saves": "second_matmul"}),
)
