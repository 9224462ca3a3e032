"""The tensors of FSDP2: whole parameters while they are used, their gradients, buffers.

A sharded parameter stays where it is; the whole one is another tensor, whose storage comes and goes
with each use, and no module lists it then. So it is claimed where FSDP2 has just made it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ullage.players.inside.patches import around

if TYPE_CHECKING:
    from ullage.players.inside.owners.ownership import Claims

_PLACE = "torch.distributed.fsdp._fully_shard."
_WATCHED = "_ullage_watched"


def watch(claims: Claims) -> None:
    """Has FSDP2 claim what it makes, once it has been imported."""
    single = getattr(sys.modules.get(_PLACE + "_fsdp_param"), "FSDPParam", None)
    group = getattr(sys.modules.get(_PLACE + "_fsdp_param_group"), "FSDPParamGroup", None)
    if single is None or group is None or hasattr(group, _WATCHED):
        return
    patches = claims.patches
    patches.replace(group, _WATCHED, value=True)

    def claim_whole(whole: Any) -> None:
        claims.claim_for(whole.sharded_param, whole._unsharded_param, "parameter")

    def claim_gathered(gathering: Any) -> None:
        result = getattr(gathering, "_all_gather_result", None)
        if result is not None:
            claims.claim_for(None, result.all_gather_output, "communication")

    def claim_gradients(reducing: Any) -> None:
        for whole in reducing.fsdp_params:
            gradients = (
                getattr(getattr(whole, "_unsharded_param", None), "grad", None),
                getattr(whole, "unsharded_accumulated_grad", None),
            )
            for gradient in gradients:
                if gradient is not None:
                    claims.claim_for(whole.sharded_param, gradient, "gradient")

    def claiming(claim: Callable[[Any], None]) -> Callable[..., None]:
        guarded = claims.unseen.guard(claim)
        return lambda owner, *_, **__: guarded(owner)

    for kind, name, before, after in (
        (single, "to_unsharded", None, claiming(claim_whole)),
        (group, "unshard", None, claiming(claim_gathered)),
        (group, "post_backward", claiming(claim_gradients), None),
    ):
        if hasattr(kind, name):  # as this torch has it
            patches.replace(kind, name, around(getattr(kind, name), before, after))
