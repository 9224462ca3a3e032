"""The cost of copies, fills, and calls of libraries of which only the bytes are known."""

from __future__ import annotations

from typing import Final

from ullage.clock.cost import Category, Cost
from ullage.clock.costs.traffic import Traffic, moved
from ullage.clock.duration import Duration, Width, around
from ullage.clock.given_work import Copy, Fill, LibraryCall
from ullage.clock.interconnect import Interconnect
from ullage.clock.table import load_widths
from ullage.gpus import Gpu
from ullage.gpus.peaks import link_bytes_per_s, peer_bytes_per_s

__all__ = ["copy_cost", "fill_cost", "library_cost"]

_CALIBRATED: Final = "measured by `ullage calibrate`"
# Of the link's rate, that of pinned memory; packets of PCIe have headers of about a tenth of their
# 256 bytes. Source: PCI Express Base Specification, transaction layer packets; assumed width.
_PINNED_SHARE: Final = 0.85
_PINNED: Final = Width(0.9, 1.3)
# Memory that is not pinned is copied by the host into a pinned buffer first. Assumed: at most
# 10 GB/s, as one thread of a host copies, and at least 2 GB/s.
_PAGEABLE_BYTES_PER_S: Final = 6e9
_PAGEABLE: Final = Width(0.6, 3.0)
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
        basis = "assumed: 0.85 of the link between GPUs"
        time = around(_START_S + work.num_bytes / (_PINNED_SHARE * rate), _PINNED, basis)
        return Cost(time, Category.COPIES, "copy between devices")
    name = f"copy {_DIRECTIONS.get(work.direction, work.direction)}"
    return Cost(_over_host_link(gpu, work), Category.COPIES, name)


def _over_host_link(gpu: Gpu, work: Copy) -> Duration:
    link = float(link_bytes_per_s(gpu))
    measured = gpu.measured
    if measured is not None and work.is_pinned:
        speed = measured.to_host if work.direction == "to host" else measured.to_device
        seconds = speed.seconds(work.num_bytes, link)
        return around(seconds, load_widths().constant_rate, _CALIBRATED)
    pinned = around(
        _START_S + work.num_bytes / (_PINNED_SHARE * link),
        _PINNED,
        f"assumed: {_PINNED_SHARE} of the host's link",
    )
    if work.is_pinned:
        return pinned
    rate = min(_PAGEABLE_BYTES_PER_S, _PINNED_SHARE * link)
    basis = "assumed: memory that is not pinned at 6 GB/s, 2 to 10 GB/s"
    time = around(_START_S + work.num_bytes / rate, _PAGEABLE, basis)
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
