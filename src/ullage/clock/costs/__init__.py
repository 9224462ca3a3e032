"""The cost of a piece of work on a GPU: an interval of seconds, the kind of work, a name.

    cost_of(find_gpu("h100"), Product(4096, 4096, 4096, 1, "bfloat16", 2), None)

Every cost is that of the work alone: nothing runs beside it. What each model rests on stands in its
module and in the duration's basis.
"""

from __future__ import annotations

from ullage.clock.cost import Cost
from ullage.clock.costs.communication import collective_cost
from ullage.clock.costs.launches import fused_attention_cost, launch_cost
from ullage.clock.costs.products import convolution_cost, product_cost
from ullage.clock.costs.transfers import copy_cost, fill_cost, library_cost
from ullage.clock.given_work import (
    CollectiveCall,
    Convolution,
    Copy,
    Fill,
    FusedAttention,
    GivenWork,
    KernelLaunch,
    Product,
)
from ullage.clock.interconnect import Interconnect, default_interconnect
from ullage.facts.gpus import Gpu


def cost_of(gpu: Gpu, work: GivenWork, interconnect: Interconnect | None = None) -> Cost:
    """The cost of a piece of work.

    Args:
        interconnect: the links between GPUs; None: those of the GPU's own machines.
    """
    links = interconnect or default_interconnect()
    match work:
        case KernelLaunch():
            return launch_cost(gpu, work, links)
        case Product():
            return product_cost(gpu, work)
        case Convolution():
            return convolution_cost(gpu, work)
        case FusedAttention():
            return fused_attention_cost(gpu, work)
        case CollectiveCall():
            return collective_cost(gpu, work, links)
        case Copy():
            return copy_cost(gpu, work, links)
        case Fill():
            return fill_cost(gpu, work)
        case _:
            return library_cost(gpu, work)
