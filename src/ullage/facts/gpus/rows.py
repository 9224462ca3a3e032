"""Turns a row of the tables into a GPU, by the rules that catalog.toml states.

The figures of a row are in the units that makers use. For the total memory, a row has the published
readings, each with the precision of its source. This module computes the interval that contains
them, the contexts, and the rates that follow from the clock and the number of SMs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ullage.facts.gpus.gpu import EstimateOnlyGpu, Gpu, Segment, TensorRates
from ullage.ground.units import GB, GIB, KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_UNIFIED_PARTS: Final = (3, 4)  # Metal's recommendedMaxWorkingSetSize of larger machines

# The groups of a row: the name of each figure in the file -> its field and the factor to its unit.
GROUPS: Final = {
    "memory": {
        "type": ("memory_type", None),
        "size": ("nominal_size", None),
        "bus_bits": ("memory_bus_bits", None),
        "bandwidth_gb": ("bandwidth_bytes_per_s", GB),
    },
    "chip": {
        "sms": ("num_multiprocessors", None),
        "clock_mhz": ("clock_khz", 1000),
        "memory_clock_mhz": ("memory_clock_khz", 1000),
        "l2_kib": ("l2_bytes", KIB),
        "l2_bytes_per_clock": ("l2_bytes_per_clock", None),
    },
    "link": {
        "form": ("form", None),
        "host": ("host_link", None),
        "nvlink_gb": ("nvlink_bytes_per_s", GB),
    },
}


class _Reading(NamedTuple):
    """One published reading of the memory that CUDA reports, with the bounds that its rounding
    allows.
    """

    value: int
    low: int
    high: int


def make_gpu(
    row: Mapping[str, Any], row_of: Callable[[str], Mapping[str, Any]], rules: Mapping[str, Any]
) -> Gpu:
    """Makes the GPU of a row.

    Args:
        row: a row of the tables, with the segment of its file.
        row_of: the row of a slug, because a total can be taken from other rows.
        rules: the rules in catalog.toml.
    """
    limits = {k: v for k, v in rules["capability"][row["capability"]].items() if k != "source"}
    major, minor = row["capability"].split(".")
    figures = {field: value for group in GROUPS for field, value in _figures(row, group)}
    if figures["memory_clock_khz"] is None and figures["memory_bus_bits"] is not None:
        bits_per_s = 8 * figures["bandwidth_bytes_per_s"]
        figures["memory_clock_khz"] = bits_per_s // figures["memory_bus_bits"] // 2000
    resident = limits["threads_per_multiprocessor"] * figures["num_multiprocessors"]
    return Gpu(
        slug=row["slug"],
        name=row["name"],
        aliases=tuple(row["aliases"]),
        segment=row["segment"],
        compute_capability=(int(major), int(minor)),
        tensor_ops_per_s=_tensor_rates(row, figures, rules),
        **limits,
        **figures,
        **_total(row, row_of),
        **_context(resident, rules["context"]),
    )


def _figures(row: Mapping[str, Any], group: str) -> Iterable[tuple[str, Any]]:
    for key, (field, unit) in GROUPS[group].items():
        value = row[group].get(key)
        yield field, value if value is None or unit is None else round(value * unit)


def _context(resident_threads: int, rule: Mapping[str, Any]) -> dict[str, Any]:
    bare = rule["bytes_per_resident_thread"] * resident_threads
    return {
        "context_low_bytes": bare * rule["low_sixteenths"] // 16 // MIB * MIB,
        "context_bytes": bare + rule["kernels_mib"] * MIB,
        "context_high_bytes": bare + rule["kernels_high_mib"] * MIB,
    }


def _total(row: Mapping[str, Any], row_of: Callable[[str], Mapping[str, Any]]) -> dict[str, Any]:
    total = row["total"]
    siblings = total.get("as", [])
    readings = [*_sibling_readings(row, row_of)] if siblings else _readings(total)
    value = min(reading.value for reading in readings) // MIB * MIB
    return {
        "total_bytes": value if siblings else readings[0].value,
        "total_low_bytes": min(reading.low for reading in readings),
        "total_high_bytes": max(reading.high for reading in readings),
        "is_total_exact": next(iter(total)) == "read",
        "total_note": f"no reading found; from {' and '.join(siblings)}, whose memory is alike"
        if siblings
        else total["note"],
    }


def _sibling_readings(
    row: Mapping[str, Any], row_of: Callable[[str], Mapping[str, Any]]
) -> Iterator[_Reading]:
    """The readings of similar GPUs, scaled to this GPU's size and widened by 1 % of it."""
    size = _nominal_bytes(row)
    for sibling in map(row_of, row["total"]["as"]):
        own = _nominal_bytes(sibling)
        for reading in _readings(sibling["total"]):
            yield _Reading(
                reading.value * size // own,
                reading.low * size // own - size // 100,
                min(reading.high * size // own + size // 100, size),
            )


def _nominal_bytes(row: Mapping[str, Any]) -> int:
    # Makers print GB on the box but mean GiB for memory.
    return int(row["memory"]["size"].removesuffix(" GB")) * GIB


def _readings(total: Mapping[str, Any]) -> list[_Reading]:
    """Each reading with the bounds that its rounding allows, in the order of the row."""
    return [
        _reading(kind, value)
        for kind, values in total.items()
        if kind in {"read", "mib", "mib_rounded", "gib"}
        for value in values
    ]


def _reading(kind: str, value: float) -> _Reading:
    if kind == "read":
        return _Reading(int(value), int(value), int(value))
    if kind == "gib":
        halves = 2 * round(100 * value)  # in 200ths of a GiB
        low, high = -(-(halves - 1) * GIB // 200), (halves + 1) * GIB // 200
        return _Reading(round(100 * value) * GIB // 100 // MIB * MIB, low, high)
    start = int(value) * MIB
    if kind == "mib":
        return _Reading(start, start, start + MIB - 1)
    return _Reading(start, start - MIB // 2, start + MIB // 2)


def _tensor_rates(
    row: Mapping[str, Any], figures: Mapping[str, Any], rules: Mapping[str, Any]
) -> TensorRates:
    tensor = row.get("tensor", {})
    if "per_clock" in tensor:
        per_clock = rules["tensor"][tensor["per_clock"]]
        clocks = figures["num_multiprocessors"] * figures["clock_khz"] * 1000
        return TensorRates(**{k: ops * clocks for k, ops in per_clock.items() if k != "source"})
    return _stated_rates(tensor)


def _stated_rates(tensor: Mapping[str, Any]) -> TensorRates:
    """The rates that the maker states in 10^12 operations per second."""
    return TensorRates(
        **{k: round(tera * 1000) * GB for k, tera in tensor.items() if k != "source"}
    )


def make_estimate_only_gpu(row: Mapping[str, Any]) -> EstimateOnlyGpu:
    """Makes the GPU of a row of estimate_only.toml."""
    identity, memory = row["made"], row["memory"]
    is_unified = memory["type"].startswith("LPDDR")
    part, whole = _UNIFIED_PARTS if is_unified else (1, 1)
    return EstimateOnlyGpu(
        slug=row["slug"],
        name=row["name"],
        aliases=tuple(row["aliases"]),
        vendor=identity["vendor"],
        segment=Segment(identity["segment"]),
        architecture=identity["architecture"],
        memory_type=memory["type"],
        memory_sizes_gb=tuple(memory["sizes_gb"]),
        is_memory_unified=is_unified,
        bandwidth_bytes_per_s=round(memory["bandwidth_gb"] * GB),
        num_cores=identity.get("cores"),
        tensor_ops_per_s=_stated_rates(row.get("tensor", {})),
        total_bytes=max(memory["sizes_gb"]) * GIB * part // whole,
    )
