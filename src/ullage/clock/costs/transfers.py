"""The cost of copies, fills, and calls of libraries of which only the bytes are known."""

from __future__ import annotations

from typing import Final

from ullage.clock.cost import Category, Cost
from ullage.clock.costs.traffic import Traffic, moved
from ullage.clock.duration import Duration, Width, around
from ullage.clock.given_work import Copy, Fill, LibraryCall
from ullage.clock.interconnect import Interconnect
from ullage.facts.gpus import Gpu
from ullage.facts.gpus.peaks import link_bytes_per_s, peer_bytes_per_s

# Of the link's rate, that of pinned memory: 24 to 27 of 31.5 GB/s (RTX 4090, A100, RTX A6000), and
# 53 of 63 (H100). Source: NVIDIA/nvbandwidth, issues 15, 24, 42 and 50.
_PINNED_SHARE: Final = 0.82
_PINNED: Final = Width(0.93, 1.2)
# Memory that is not pinned is copied by the host into a pinned buffer first, or out of it: 1.4 GB/s
# from an A100 into new memory (pytorch, pull request 138018). Assumed otherwise, as one thread of a
# host copies: bytes a second, and the interval of the time.
_PAGEABLE: Final = {"to device": (6e9, Width(0.6, 3.0)), "to host": (3e9, Width(0.4, 2.2))}
# Assumed: the start of a copy over the host's link.
_START_S: Final = 8e-6
_LIBRARY: Final = (0.5, 4.0)
_DIRECTIONS: Final = {"to device": "host to device", "to host": "device to host"}


def copy_cost(gpu: Gpu, work: Copy, links: Interconnect) -> Cost:
    """The cost of a copy."""
    if work.direction == "on device":
        time = moved(gpu, Traffic.of(2.0 * work.num_bytes), "read and written")
        return Cost(time, Category.COPIES, "copy on device")
    if work.direction == "between devices":
        rate = links.within_bytes_per_s or peer_bytes_per_s(gpu, 2)
        rate = float(link_bytes_per_s(gpu)) if links.is_pcie else rate
        basis = f"assumed: {_PINNED_SHARE} of the link between GPUs"
        time = around(_START_S + work.num_bytes / (_PINNED_SHARE * rate), _PINNED, basis)
        return Cost(time, Category.COPIES, "copy between devices")
    name = f"copy {_DIRECTIONS.get(work.direction, work.direction)}"
    return Cost(_over_host_link(gpu, work), Category.COPIES, name)


def _over_host_link(gpu: Gpu, work: Copy) -> Duration:
    link = float(link_bytes_per_s(gpu))
    pinned = around(
        _START_S + work.num_bytes / (_PINNED_SHARE * link),
        _PINNED,
        f"{_PINNED_SHARE} of the host's link",
    )
    if work.is_pinned:
        return pinned
    assumed, width = _PAGEABLE["to host" if work.direction == "to host" else "to device"]
    rate = min(assumed, _PINNED_SHARE * link)
    basis = f"assumed: memory that is not pinned at {rate * 1e-9:.0f} GB/s"
    time = around(_START_S + work.num_bytes / rate, width, basis)
    return Duration(max(time.low_s, pinned.low_s), time.s, time.high_s, basis)


def fill_cost(gpu: Gpu, work: Fill) -> Cost:
    """The cost of a memset."""
    time = moved(gpu, Traffic.of(float(work.num_bytes)), "written once")
    return Cost(time, Category.MEMORY_BOUND, "fill")


def library_cost(gpu: Gpu, work: LibraryCall) -> Cost:
    """The cost of a call of a library: its blocks once, and a wide interval."""
    # Batch normalisation reads its input once more for the statistics, unless caches hold it.
    is_norm = "BatchNorm" in work.name
    traffic = Traffic.of(float(work.num_bytes), *_LIBRARY)
    if is_norm:
        traffic = Traffic.of(1.25 * work.num_bytes, 0.75, 1.6)
    time = moved(gpu, traffic, "a call of a library, by the bytes that it was handed")
    category = Category.UNKNOWN if not work.name else Category.MEMORY_BOUND
    return Cost(time, category, work.name or "call of a library")
