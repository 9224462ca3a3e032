"""Parameters, gradients and optimizer states split among the ranks, by torch's FSDP2.

The modules that an action names (the blocks) are gathered one at a time when they are used, and the
rest of the model as one unit. If a script moves its model to the GPU, each block is split when it
arrives there, so that no GPU ever stores the whole model. Optimizers that were created before get
the new parameters. If the program uses a parameter that it stored before the split, an error says
so.

With `keeps_gathered` the gathered parameters stay from forward to backward: only gradients and
states are split (ZeRO-2). Without it they are gathered again in backward (ZeRO-3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ullage.act.techniques.means.sharing.rank_groups import (
    begin,
    check_is_eager,
    check_is_whole,
    draw_apart,
    join,
    settle,
)
from ullage.act.techniques.means.sharing.sharded import Sharded
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique
from ullage.ground.errors import PlanError

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target
    from ullage.act.techniques.means.sharing.rank_groups import Ranks

_NAME = "shard"
_DONE: WeakKeyDictionary[Any, tuple[Ranks, Sharded]] = WeakKeyDictionary()


def _apply(target: Target, action: Action) -> None:
    check_is_eager(target, _NAME)
    model = target.module("")
    if model not in _DONE:
        _shard(target, action)
    ranks, sharded = _DONE[model]
    sharded.hand_over(target.optimizers)  # also to those created since the move
    draw_apart(ranks)


def _shard(target: Target, action: Action) -> None:
    """Splits the model, and moves it to the device of the rank."""
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

    check_is_whole(target, _NAME)
    model = target.module("")
    blocks = [target.module(path) for path in action.modules]
    _check_apart(model, blocks)
    ranks = join(_NAME, model, target.changes)
    device = _device()
    is_offloaded = bool(SHARD.value_of(action, "offload"))
    if is_offloaded and device.type == "cpu":
        raise PlanError(f"{_NAME!r}: there is no GPU to offload from")
    sharded = Sharded(model, target.changes)
    for module in (*blocks, model):
        settle(module, device, ranks)
        sharded.split(
            module,
            device.type,
            reshard_after_forward=not SHARD.value_of(action, "keeps_gathered"),
            offload_policy=CPUOffloadPolicy() if is_offloaded else OffloadPolicy(),
        )
    sharded.hand_over(target.optimizers)
    _DONE[model] = ranks, sharded
    target.changes.on_undo(_DONE.pop, model)


def _device() -> Any:
    """The device of the model: the GPU, or the CPU if there is none."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _check_apart(model: Any, blocks: list[Any]) -> None:
    """Raises PlanError if two units that are gathered separately share a parameter."""
    owner: dict[int, int] = {}
    for number, block in enumerate(blocks):
        for parameter in block.parameters():
            if owner.setdefault(id(parameter), number) != number:
                _refuse_shared()
    inside = {id(part) for block in blocks for part in block.modules()}
    for part in model.modules():
        if id(part) not in inside and any(
            id(parameter) in owner for parameter in part._parameters.values()
        ):
            _refuse_shared()


def _refuse_shared() -> None:
    raise PlanError(
        f"{_NAME!r} does not go with this program: a parameter of one block also belongs to "
        "another module, and would be gathered for only one of them; name fewer modules"
    )


SHARD = Technique(
    name=_NAME,
    does="splits parameters, gradients and optimizer states among the ranks (FSDP2)",
    precondition="no parameter belongs to two blocks that are sharded separately",
    proof="the parameters of the blocks are compared",
    semantics=Semantics.TRAINING,
    place=Place.RANKS,
    reference="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
    apply=_apply,
    start=begin,
    on_move=_shard,
    settings={
        "keeps_gathered": Setting(
            default=False, what="whether gathered parameters stay from forward to backward (ZeRO-2)"
        ),
        "offload": Setting(
            default=False, what="whether shards are stored in host memory and stepped there"
        ),
    },
    needs=("torch>=2.6",),
    excludes=(
        "data_parallel", "zero_optimizer", "optimizer_in_backward", "optimizer_offload",
        "bf16_states", "eight_bit_states", "four_bit_states", "bf16_parameters",
        "autocast_float16", "lora", "parameter_offload", "chunked_loss", "micro_batches",
    ),
    variants=({"keeps_gathered": True}, {"offload": True}),
    needs_ranks=True,
    names_modules=True,
)  # fmt: skip
