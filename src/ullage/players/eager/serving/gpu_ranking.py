"""On which GPUs a server fits, and how many of each it needs.

for row in rank_for_serving(config, ServingPlan(context=8192, users=16), load_catalog()):
    print(row.gpu, row.count, row.users)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ullage.facts.families.config import COUNTED, Config
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.serving import estimate_serving
from ullage.players.eager.serving.serving_plan import ServingPlan
from ullage.players.eager.term import Verdict

if TYPE_CHECKING:
    from ullage.facts.gpus.gpu import Gpu

_COUNTS: Final = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class ServingRow:
    """A GPU of the catalogue, and how a server fares on it.

    Attributes:
        gpu: its name in the catalogue.
        count: how many it takes, which share every layer; None: more than 8, or than the model's
            layers can be divided by.
        capacity_bytes: of one of them.
        users: requests of the plan's context that fit at least, on that number of GPUs.
    """

    gpu: str
    count: int | None
    capacity_bytes: int
    users: int


def rank_for_serving(
    config: Config, plan: ServingPlan, gpus: Iterable[Gpu]
) -> tuple[ServingRow, ...]:
    """The GPUs on which at least the plan's users fit, the fewest and smallest first; then the
    others.

    Raises:
        SpecError: the model is not known, or the plan is not possible on one GPU.
    """
    if config.model_type == COUNTED:
        raise SpecError(
            f"{config.name}: a number of parameters does not say on which GPU a server fits; "
            f"take a config.json, or leave out --which-gpu"
        )
    rows = [_row(config, plan, gpu) for gpu in gpus]
    return tuple(sorted(rows, key=lambda row: (row.count or _COUNTS[-1] + 1, row.capacity_bytes)))


def _row(config: Config, plan: ServingPlan, gpu: Gpu) -> ServingRow:
    users = 0
    for count in _COUNTS:
        try:
            estimate = estimate_serving(config, replace(plan, gpu=gpu, tensor_parallel=count))
        except SpecError:  # their number does not divide the layers
            if count == 1:
                raise
            break
        users = estimate.users[0]
        if estimate.verdict is Verdict.FITS:
            return ServingRow(gpu.slug, count, gpu.total_bytes, users)
    return ServingRow(gpu.slug, None, gpu.total_bytes, users)
