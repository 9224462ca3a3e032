"""The host's time to give the device work."""

from __future__ import annotations

from typing import Final, NamedTuple

from ullage.clock.simulation import HostCosts

# An operator of PyTorch with its kernel's launch takes some microseconds, by operator and
# processor: 5 are assumed.
_LAUNCH_S: Final = (2e-6, 5e-6, 10e-6)
# A graph's launch takes 2.5 us of the host, whatever its length.
# Source: NVIDIA developer blog, "Constant Time Launch for Straight-Line CUDA Graphs", 2024.
_GRAPH_S: Final = (2.5e-6, 5e-6, 10e-6)


class HostInterval(NamedTuple):
    """The lower bound, the likely value, and the upper bound."""

    low: HostCosts
    likely: HostCosts
    high: HostCosts


HOST_COSTS: Final = HostInterval(
    *(HostCosts(launch_s, graph_s) for launch_s, graph_s in zip(_LAUNCH_S, _GRAPH_S, strict=True))
)
"""The times of any host."""
