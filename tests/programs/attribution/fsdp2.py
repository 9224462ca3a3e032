"""A transformer sharded over four ranks by FSDP2, parameters cast to bfloat16 for their use."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import ranks
import torch
from torch import distributed
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param
from transformer import Transformer, loss_of
from truth import Truth


@contextmanager
def seen(holder: Any, name: str, note: Any) -> Iterator[None]:
    """Calls `note` with the arguments and the result of a function, after each call."""
    original = getattr(holder, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        note(args, kwargs, result)
        return result

    setattr(holder, name, call)
    yield
    setattr(holder, name, original)


def main() -> None:
    """Three steps."""
    ranks.join()
    with Truth() as truth, ExitStack() as stack:
        model = Transformer(vocabulary=2048, width=512, num_blocks=8).cuda()
        paths = {id(module): path for path, module in model.named_modules()}
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        truth.owner(model)

        def note_unsharded(args: Any, _kwargs: Any, _result: Any) -> None:
            sharded = args[0]
            path = paths[id(sharded._module_info.module)]
            truth.say("parameter", sharded.all_gather_outputs, path)
            truth.say("parameter", sharded._unsharded_param, path)
            sharded._unsharded_param.register_post_accumulate_grad_hook(
                lambda parameter: truth.say("gradient", parameter.grad, path)
            )

        def note_sent(_args: Any, _kwargs: Any, result: Any) -> None:
            truth.say("communication", result)

        kind = _fsdp_param.FSDPParam
        stack.enter_context(seen(kind, "init_unsharded_param", note_unsharded))
        stack.enter_context(
            seen(
                kind, "alloc_all_gather_outputs",
                lambda args, *_: truth.say(
                    "parameter", args[0].all_gather_outputs,
                    paths[id(args[0]._module_info.module)],
                ),
            )
        )  # fmt: skip
        for name in ("allocate",):
            for comm in ("DefaultAllGather", "DefaultReduceScatter"):
                stack.enter_context(seen(getattr(_fsdp_collectives, comm), name, note_sent))
        optimizer = truth.optimizer(torch.optim.AdamW(model.parameters(), foreach=True))
        for _ in range(3):
            ids = truth.input(torch.randint(2048, (2, 512)).cuda())
            loss = loss_of(model(ids), ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
