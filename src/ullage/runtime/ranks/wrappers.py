"""What DDP and FSDP2 keep of a step that has failed, and how they are ready for another.

DDP's reducer counts the gradients of a backward and expects it to end: `_reset_state` of torch, which
is there for errors in a backward, makes it ready. Afterwards it orders its buckets anew, as after
its first step. FSDP2 has parameters gathered and counts forwards: `reset_iter_state` shards them.
"""

from __future__ import annotations

from typing import Any

import torch

from ullage.errors import SpecError

_REPLICATED = "DistributedDataParallel"


class Wrappers:
    """Those of a model.

    Args:
        model: the `nn.Module`.

    Raises:
        SpecError: one of them cannot be made ready for another try.
    """

    def __init__(self, model: Any) -> None:
        modules = list(model.modules())
        self._replicated = [each for each in modules if type(each).__name__ == _REPLICATED]
        self._sharded = _find_roots(model)
        for each in self._replicated:
            _check_replicated(each)
        for each in self._sharded:
            if not hasattr(each, "reset_iter_state"):
                raise SpecError(
                    f"torch {torch.__version__} has no FSDPModule.reset_iter_state, without which "
                    "a fully_shard model is not ready for another try; torch 2.15 has it"
                )

    @property
    def has_sharded(self) -> bool:
        """Whether FSDP2 has parameters."""
        return bool(self._sharded)

    @property
    def shares_gradients(self) -> bool:
        """Whether gradients are views of buckets, which collectives change."""
        return any(each.gradient_as_bucket_view for each in self._replicated)

    @property
    def num_rebuilt(self) -> int:
        """How many of DDP's models have ordered their buckets."""
        return sum(each._has_rebuilt_buckets for each in self._replicated)

    def reset(self, parameters: Any) -> None:
        """Makes them ready for another try. Gradients stay as they are."""
        for each in self._replicated:
            each.reducer._reset_state()
        gradients = [parameter.grad for parameter in parameters] if self._sharded else []
        for each in self._sharded:
            # Before its first forward there is nothing to reset.
            if each._get_fsdp_state()._is_root:
                each.reset_iter_state()
        for parameter, gradient in zip(parameters, gradients, strict=False):
            parameter.grad = gradient


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
    if any(not _is_plain(state) for _, state in getattr(module, "_comm_hooks", ())):
        raise SpecError(
            "a communication hook of DistributedDataParallel has a state, which the guard does not "
            "restore; use one without a state"
        )


def _is_plain(state: Any) -> bool:
    return state is None or isinstance(state, torch.distributed.ProcessGroup)
