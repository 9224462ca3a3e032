"""Splits the matrices of a transformers model among the ranks of a job, which all train on the same
batch.

Each rank has some attention heads and some columns of the feed-forward layers, with their gradients
and optimizer states. The partial results of the ranks are summed after each layer part
(Megatron-LM). Embeddings, norms and head are replicated. The model's own plan, `base_model_tp_plan`
of its configuration, says how each matrix is split.

The script is written for a single GPU, and every rank runs all of it, with the same seed and the
same batches. The first call checks that they are the same; a rank with rows of its own is refused.
Parameters remain the same objects, so that optimizers keep them. State dicts are complete.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.nested import tensors
from ullage.act.techniques.means.sharing.rank_groups import (
    check_is_eager,
    check_is_whole,
    join,
    settle,
)
from ullage.act.techniques.means.sharing.split_parameters import SplitParameters
from ullage.act.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

_NAME = "tensor_parallel"
_COLUMNS, _ROWS, _SUMMED = "colwise", "rowwise", "replicated_with_grad_allreduce"
# Which dimension of a weight is split; a bias is split with the columns, and added once to rows.
_DIMS = {_COLUMNS: 0, _ROWS: 1}
_HEADS = ("num_attention_heads", "num_key_value_heads")


def _apply(target: Target, action: Action) -> None:
    if action.modules:
        TENSOR_PARALLEL.refuse("it applies to the whole model, and takes no module paths")
    check_is_whole(target, _NAME)
    check_is_eager(target, _NAME)
    model = target.module("")
    styles = dict(_styles(model))
    ranks = join(_NAME, model, target.changes)
    if not ranks.is_ours:
        TENSOR_PARALLEL.refuse(
            "it distributes its batches itself, and all ranks need the same batch"
        )
    _check(model, styles, ranks.size)
    settle(model, next(model.parameters()).device, ranks)
    split = SplitParameters(
        TENSOR_PARALLEL.refuse, model, ranks.rank, ranks.size, changes=target.changes
    )
    for path, style in styles.items():
        module = target.module(path)
        if style == _SUMMED:
            for parameter in module.parameters():
                target.changes.hook(parameter.register_hook(_sum))
            continue
        split.split(module.weight, _DIMS[style])
        if style == _COLUMNS and module.bias is not None:
            split.split(module.bias, 0)
        target.wrap_forward(path, _columns if style == _COLUMNS else _rows)
    split.hand_over(target.optimizers)
    target.wrap_forward("", _same_at_first())


def _start(torch: ModuleType) -> None:
    """Runs before the first line of a script. Selects the device of the rank, and gives all ranks
    the same random seed.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local:
        torch.cuda._lazy_call(lambda: torch.cuda.set_device(local))
    job = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT")]
    seed = zlib.crc32(":".join(job).encode())
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def _styles(model: Any) -> Iterator[tuple[str, str]]:
    base = getattr(model, getattr(model, "base_model_prefix", ""), model)
    tp_plan = getattr(getattr(base, "config", None), "base_model_tp_plan", None)
    if not tp_plan:
        TENSOR_PARALLEL.refuse(
            f"{type(model).__name__} has no base_model_tp_plan, in which a transformers "
            "model says how its matrices are split"
        )
    prefix = "" if base is model else f"{model.base_model_prefix}."
    for pattern, style in tp_plan.items():
        path_pattern = re.compile(re.escape(prefix + pattern).replace(r"\*", r"[^.]+"))
        modules = [path for path, _ in model.named_modules() if path_pattern.fullmatch(path)]
        if modules and style not in {_COLUMNS, _ROWS, _SUMMED}:
            TENSOR_PARALLEL.refuse(
                f"the plan of {type(model).__name__} splits {modules[0]!r} as {style!r}"
            )
        yield from ((path, style) for path in modules)


def _check(model: Any, styles: dict[str, str], size: int) -> None:
    """Raises PlanError if the parts would be unequal, or ranks would draw wrong random numbers."""
    from torch import nn

    modules = dict(model.named_modules())
    config = model.config.get_text_config()
    for name in _HEADS:
        count = getattr(config, name, size)
        if count % size:
            TENSOR_PARALLEL.refuse(f"{name} is {count}, which {size} ranks cannot share")
    for path, style in styles.items():
        module = modules[path]
        if style == _SUMMED:
            continue
        if type(module) is not nn.Linear:
            TENSOR_PARALLEL.refuse(f"{path} is a {type(module).__name__}, and only Linear is split")
        if module.weight.shape[_DIMS[style]] % size:
            TENSOR_PARALLEL.refuse(
                f"{path} has {module.weight.shape[_DIMS[style]]} rows or columns, which {size} "
                "ranks cannot share"
            )
    for parent in {path.rpartition(".")[0] for path in styles}:
        rates = [getattr(modules[parent], name, 0.0) for name in ("attention_dropout", "dropout")]
        rates += [
            module.p for module in modules[parent].modules() if isinstance(module, nn.Dropout)
        ]
        if any(isinstance(rate, float) and rate > 0 for rate in rates):
            TENSOR_PARALLEL.refuse(
                f"{parent} has dropout, which ranks would draw alike for other heads"
            )


# ---- The forward of a split module ---------------------------------------------------------------


def _columns(forward: Callable[..., Any], rows: Any) -> Any:
    """A part of the columns; backward sums the gradient of the input over the ranks."""
    return forward(_functions()[0].apply(rows))


def _rows(forward: Callable[..., Any], part: Any) -> Any:
    """A part of the rows; the output is summed over the ranks, and the bias is added once."""
    from torch.nn import functional

    module = forward.__self__  # type: ignore[attr-defined]
    whole = _functions()[1].apply(functional.linear(part, module.weight))
    return whole if module.bias is None else whole + module.bias


def _sum(value: Any) -> Any:
    from torch import distributed

    value = value.contiguous()
    distributed.all_reduce(value)
    return value


def _functions() -> tuple[Any, Any]:
    """Functions that sum in backward only, and in forward only: f and g of the paper."""
    if not _MADE:
        from torch.autograd import Function

        class SumBackward(Function):  # type: ignore[misc]
            """Identity in forward."""

            @staticmethod
            def forward(_: Any, value: Any) -> Any:
                return value.view_as(value)

            @staticmethod
            def backward(_: Any, *gradients: Any) -> Any:
                return _sum(gradients[0].clone())

        class SumForward(Function):  # type: ignore[misc]
            """Identity in backward."""

            @staticmethod
            def forward(_: Any, value: Any) -> Any:
                return _sum(value.clone())

            @staticmethod
            def backward(_: Any, *gradients: Any) -> Any:
                return gradients[0]

        _MADE.extend((SumBackward, SumForward))
    return _MADE[0], _MADE[1]


_MADE: list[Any] = []


# ---- Same batches --------------------------------------------------------------------------------


def _same_at_first() -> Callable[..., Any]:
    """Compares the inputs and the random state of all ranks at the first call."""
    is_checked = False

    def check_and_run(forward: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        nonlocal is_checked
        if not is_checked:
            is_checked = True
            _check_same((arguments, keywords))
        return forward(*arguments, **keywords)

    return check_and_run


def _check_same(inputs: Any) -> None:
    import torch
    from torch import distributed

    values = [tensor.detach().cpu() for tensor in tensors(inputs)]
    digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for value in values:
        digest.update(
            pickle.dumps((value.shape, value.double().sum().item(), value.flatten()[:64].tolist()))
        )
    digests: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(digests, digest.hexdigest())
    if len(set(digests)) > 1:
        TENSOR_PARALLEL.refuse(
            "its ranks have other batches, or draw other random numbers; call "
            "torch.manual_seed, and give all ranks the same rows"
        )


TENSOR_PARALLEL = Technique(
    name=_NAME,
    does="splits the matrices of a transformers model among ranks that train on the same batch",
    precondition="the model's configuration says how its matrices are split",
    proof="the model's own plan is used; the ranks must divide the number of heads",
    semantics=Semantics.SAME,
    place=Place.RANKS,
    reference="https://arxiv.org/abs/1909.08053",
    apply=_apply,
    start=_start,
    needs=("transformers",),
    excludes=(
        "data_parallel", "zero_optimizer", "shard", "optimizer_in_backward", "optimizer_offload",
        "bf16_states", "eight_bit_states", "flash_attention",
    ),
    reorders=True,
    needs_ranks=True,
)  # fmt: skip
