"""The kernels of an optimizer's step: which lists of tensors they read and write.

Source: torch 2.15, torch/optim/adam.py, sgd.py, adagrad.py and rmsprop.py, the functions that
begin with _multi_tensor; bitsandbytes 0.48, csrc/kernels.cu.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ullage.ground.errors import SpecError
from ullage.players.eager.training.eager.kernels import Kernel, Kind, Trained


class _Pass(NamedTuple):
    """One kernel over lists: how many, and how many of them are read; one is written."""

    lists: int
    reads: int
    functor: str = "BinaryOpScalarFunctor"


_ADAM: Final = (
    _Pass(1, 1), _Pass(2, 2), _Pass(1, 1), _Pass(3, 3), _Pass(2, 1), _Pass(1, 1), _Pass(1, 1),
    _Pass(3, 3),
)  # fmt: skip
_FUSED: Final = "FusedAdamMathFunctor"
# By the names of players/eager/training/optimizers.py.
_PASSES: Final[dict[str, tuple[_Pass, ...]]] = {
    "adamw": _ADAM,
    "adam": _ADAM[1:],
    "adamw-loop": _ADAM,
    "adamw-amsgrad": (*_ADAM, _Pass(2, 2)),
    "adamw-fused": (_Pass(4, 4, _FUSED),),
    "sgd": (_Pass(2, 2),),
    "momentum": (_Pass(1, 1), _Pass(2, 2), _Pass(2, 2)),
    "adagrad": (_Pass(3, 3), _Pass(2, 1), _Pass(1, 1), _Pass(2, 2), _Pass(3, 3)),
    "rmsprop": (_Pass(1, 1), _Pass(3, 3), _Pass(2, 1), _Pass(1, 1), _Pass(3, 3)),
}
# Bytes of a parameter that one kernel moves beside the parameter and its gradient: two states of
# one byte each, read and written.
_BYTEWISE: Final = ("adamw-8bit", "adamw-8bit-torchao")


def optimizer_kernels(name: str, trained: Trained) -> Iterator[Kernel]:
    """The kernels of a step.

    Raises:
        SpecError: nothing is known of this optimizer's time.
    """
    if name in _BYTEWISE:
        numel, itemsize = trained.numel, trained.itemsize
        sizes = (numel * itemsize, numel * itemsize, numel * itemsize, *(numel,) * 4)
        yield Kernel(Kind.JOIN, (sum(sizes) // 2, sum(sizes) // 2), (numel,), trained.precision)
        return
    if name not in _PASSES:
        known = ", ".join((*_PASSES, *_BYTEWISE))
        raise SpecError(
            f"optimizer: found {name!r}, whose time is not known; expected {known}, or time the "
            "program with `ullage run --time`"
        )
    # One parameter after the other, each kernel has little to do, and the host is what counts.
    parts = trained.num_tensors if name.endswith("-loop") else 1
    numel = max(1, trained.numel // max(1, parts))
    for _ in range(parts):
        for each in _PASSES[name]:
            yield _over_lists(each, numel, trained)


def clip_kernels(trained: Trained) -> Iterator[Kernel]:
    """clip_grad_norm_: a norm of the gradients, which are then scaled."""
    yield _over_lists(_Pass(1, 1, "LpNormFunctor"), trained.numel, trained)
    yield _over_lists(_Pass(1, 1), trained.numel, trained)


def _over_lists(each: _Pass, numel: int, trained: Trained) -> Kernel:
    return Kernel(
        Kind.LISTS,
        (numel * trained.itemsize,) * each.lists,
        (each.lists, each.reads, numel),
        trained.precision,
        each.functor,
    )
