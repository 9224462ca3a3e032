"""What the host needs to give the device work."""

from __future__ import annotations

from typing import Final, NamedTuple

from ullage.clock.simulation import HostCosts
from ullage.gpus import Gpu

# An operator of PyTorch with its kernel's launch takes some microseconds, by operator and
# processor: 5 are assumed, as in the roofline of `ullage fit`.
_LAUNCH_S: Final = (2e-6, 5e-6, 10e-6)
# A graph's launch takes 2.5 us of the host, whatever its length.
# Source: NVIDIA developer blog, "Constant Time Launch for Straight-Line CUDA Graphs", 2024.
_GRAPH_S: Final = (2.5e-6, 5e-6, 10e-6)


class HostInterval(NamedTuple):
    """The lower bound, the likely value, and the upper bound."""

    low: HostCosts
    likely: HostCosts
    high: HostCosts


def host_costs(gpu: Gpu) -> HostInterval:
    """What the host needs: by what `ullage calibrate` measured on the machine of this GPU, within a
    factor of two; else assumed.
    """
    launches = _LAUNCH_S
    if gpu.measured is not None:
        likely_s = gpu.measured.launch_s
        launches = (likely_s / 2, likely_s, likely_s * 2)
    pairs = zip(launches, _GRAPH_S, strict=True)
    return HostInterval(*(HostCosts(launch_s, graph_s) for launch_s, graph_s in pairs))
