"""The state that DDP and FSDP2 keep of a step that has failed, and how they are ready for another.

DDP's reducer counts the gradients of a backward and expects it to end: `_reset_state` of torch,
which is there for errors in a backward, makes it ready. Afterwards it orders its buckets anew, as
after its first step; ranks do this together, at the begin of the next step. FSDP2 has parameters
gathered and counts forwards: `reset_iter_state` of torch shards them again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ullage.ground.errors import GuardError, SpecError

_RANDOM = "torch.distributed.tensor._random"
_REPLICATED = "DistributedDataParallel"


class Wrappers:
    """The wrappers of a model.

    Args:
        model: the `nn.Module`.

    Raises:
        SpecError: one of them cannot be made ready for another try.
    """

    def __init__(self, model: Any) -> None:
        modules = list(model.modules())
        self._replicated = [each for each in modules if type(each).__name__ == _REPLICATED]
        self._sharded = _find_roots(model)
        self._had_sums = False
        self._tracker: Any = None
        self._flags: list[dict[str, bool]] = []
        self._unordered = [each for each in self._replicated if not each.find_unused_parameters]
        for each in self._replicated:
            _check_replicated(each)
        for each in self._sharded:
            if not hasattr(each, "reset_iter_state"):
                raise SpecError(
                    f"torch {torch.__version__} has no FSDPModule.reset_iter_state, without which "
                    "a fully_shard model is not ready for another try; torch 2.15 has it"
                )
        self._groups = [group for each in self._sharded for group in _groups_of(each)]
        self._whole = [each for group in self._groups for each in group.fsdp_params]

    @property
    def shares_gradients(self) -> bool:
        """True if gradients are views of buckets, which collectives change."""
        return any(each.gradient_as_bucket_view for each in self._replicated)

    @property
    def has_unordered(self) -> bool:
        """True if DDP may order its buckets when it is called next, by collectives that tell each
        rank the order: nothing else may take their place.
        """
        return bool(self._unordered)

    def order(self) -> None:
        """Orders buckets, on all ranks, where a backward has shown their order.

        Raises:
            GuardError: there is no memory for them on this rank, while others have ordered theirs.
        """
        if not torch.is_grad_enabled():
            return
        for each in list(self._unordered):
            try:
                is_ordered = each._has_rebuilt_buckets or each.reducer._rebuild_buckets()
            except torch.OutOfMemoryError as error:
                raise GuardError(f"DistributedDataParallel's buckets do not fit: {error}") from None
            if is_ordered:
                each._has_rebuilt_buckets = True
                self._unordered.remove(each)

    def on_call(self, call: Callable[[], None]) -> list[Any]:
        """Has a function called before each forward of DDP; the handles."""
        return [
            each.register_forward_pre_hook(lambda *_: call(), prepend=True)
            for each in self._replicated
        ]

    def take(self) -> list[Any]:
        """Notes what DDP has set, as whether the next forward sends buffers to all ranks, and
        DTensor's generator. Returns what has gradients that FSDP2 has not reduced.
        """
        self._had_sums = any(group._partial_reduce_output is not None for group in self._groups)
        self._tracker = getattr(sys.modules.get(_RANDOM), "_rng_tracker", None)
        self._flags = [
            {name: value for name, value in vars(each).items() if isinstance(value, bool)}
            for each in self._replicated
        ]
        leaves = [getattr(each, "_unsharded_param", None) for each in self._whole]
        return [leaf for leaf in leaves if leaf is not None and leaf.grad is not None]

    def reset(self, parameters: Any) -> None:
        """Makes them ready for another try. Gradients stay unchanged."""
        if _RANDOM in sys.modules:
            # The first random operation sends the seed to all ranks: on all of them, or on none.
            vars(sys.modules[_RANDOM])["_rng_tracker"] = self._tracker
        for each, flags in zip(self._replicated, self._flags, strict=True):
            vars(each).update(flags)
            each.reducer._reset_state()
            each._has_rebuilt_buckets = False
        self._unordered = [each for each in self._replicated if not each.find_unused_parameters]
        gradients = [parameter.grad for parameter in parameters] if self._sharded else []
        for each in self._sharded:
            # Before its first forward there is nothing to reset.
            if each._get_fsdp_state()._is_root:
                each.reset_iter_state()
        for parameter, gradient in zip(parameters, gradients, strict=False):
            parameter.grad = gradient

    def check_sums(self) -> None:
        """Raises GuardError if FSDP2 had sums that `reset` has dropped."""
        if self._had_sums:
            raise GuardError(
                "FSDP2 had sums of earlier micro-batches that were not reduced over all ranks yet "
                "(set_requires_all_reduce(False)), and drops them after an error; pass all "
                "micro-batches of an optimizer's step to one guard.step"
            )


def _groups_of(root: Any) -> list[Any]:
    return [
        group
        for module in root.modules()
        if _is_sharded(module)
        for group in module._get_fsdp_state()._fsdp_param_groups
    ]


def _find_roots(model: Any) -> list[Any]:
    """The modules with FSDP2's methods that are within no other."""
    if _is_sharded(model):
        return [model]
    return [root for child in model.children() for root in _find_roots(child)]


def _is_sharded(module: Any) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def _check_replicated(module: Any) -> None:
    if getattr(module, "static_graph", False):
        raise SpecError(
            "DistributedDataParallel(static_graph=True) expects the same order of gradients in "
            "every step, which a step that is run again does not have; leave it out"
        )
    if any(
        not isinstance(state, torch.distributed.ProcessGroup | None)
        for _, state in getattr(module, "_comm_hooks", ())
    ):
        raise SpecError(
            "a communication hook of DistributedDataParallel has a state, which the guard does not "
            "restore; use one without a state"
        )
