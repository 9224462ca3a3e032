"""Which table stands for a GPU and a precision, at which rates, and how much wider its interval is.

The GPU's own table is the best; else that of the nearest relative, scaled by the rates that the
catalogue states for both. How wrong that is was measured between GPUs that have tables
(docs/results/time.md): a relative with the same capability and as many multiprocessors
predicts better than any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from ullage.clock.duration import Width
from ullage.clock.table import Table, load_table, load_widths, table_names
from ullage.clock.work import Kind, Roof
from ullage.facts.gpus import Gpu, find_gpu
from ullage.facts.gpus.peaks import flops_per_s, peer_bytes_per_s
from ullage.ground.errors import SpecError

COLLECTIVES: Final = frozenset(
    {
        Kind.ALL_REDUCE,
        Kind.ALL_GATHER,
        Kind.REDUCE_SCATTER,
        Kind.ALL_TO_ALL,
        Kind.CUSTOM_ALL_REDUCE,
    }
)
# What has no table of its own, and the tables that may stand for it. True: on the same units at the
# same rate.
_STANDS_FOR: Final = {
    "float16": (("bfloat16", True),),
    "float8_e5m2": (("float8_e4m3fn", True),),
    "int8": (("float8_e4m3fn", False), ("bfloat16", False)),
    "float8_e4m3fn": (("bfloat16", False),),
}
_OTHERWISE: Final = (("bfloat16", False),)
# Two chips are alike in size if neither has more than this many times the other's multiprocessors.
_ALIKE: Final = 1.25
_TENSOR: Final = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "tf32": "tf32",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int8": "int8",
    "float4_e2m1fn_x2": "fp4",
}


@dataclass(frozen=True, slots=True)
class Match:
    """A table for a GPU.

    Attributes:
        table: the table.
        roof: the rates of the GPU that is asked for.
        width: how much wider than the table's own the interval is; None: it is the GPU's own table.
        note: what is assumed; empty: nothing.
    """

    table: Table
    roof: Roof
    width: Width | None
    note: str


def slug_of(gpu: Gpu) -> str:
    """Its name in the catalogue, without what was changed of it."""
    return gpu.slug.partition(" ")[0]


def find_table(gpu: Gpu, kind: Kind, precision: str) -> Match:
    """The table for a kind of work in a precision, or the best that stands for it.

    Args:
        precision: torch's name of the operands' type; "tf32" and "fp32" for float32.

    Raises:
        SpecError: no GPU has a table of this kind.
    """
    for candidate, is_same_rate in ((precision, True), *_STANDS_FOR.get(precision, _OTHERWISE)):
        owners = [name for name, of, kept_as in table_names() if (of, kept_as) == (kind, candidate)]
        if not owners:
            continue
        if slug_of(gpu) in owners:
            owner = slug_of(gpu)
        else:
            owner = min(owners, key=lambda name: _distance(gpu, find_gpu(name)))
        if not is_same_rate and not is_alike(gpu, find_gpu(owner)) and candidate != "bfloat16":
            continue  # bfloat16 of a nearer relative is better than another precision of a far one
        return _match(gpu, load_table(owner, kind, candidate), precision, is_same_rate=is_same_rate)
    raise SpecError(f"no GPU has a table of {kind.value}; use the roofline")


def _match(gpu: Gpu, table: Table, precision: str, *, is_same_rate: bool) -> Match:
    widths = load_widths()
    width, notes = None, []
    if not is_same_rate:
        width = widths.other_precision
        notes.append(f"the efficiency of {table.precision} stands for that of {precision}")
    relative = find_gpu(table.gpu)
    if table.gpu != slug_of(gpu):
        is_near = is_alike(gpu, relative)
        beside = widths.same_architecture if is_near else widths.other_architecture
        width = beside if width is None else width.joined(beside)
        notes.append(f"measured on {table.gpu}, scaled by the stated rates")
    if width is None:
        return Match(table, table.roof, None, "")
    return Match(table, _roof(gpu, relative, table, precision), width, "; ".join(notes))


def _roof(gpu: Gpu, relative: Gpu, table: Table, precision: str) -> Roof:
    if table.kind in COLLECTIVES:
        times = peer_bytes_per_s(gpu, 8) / peer_bytes_per_s(relative, 8)
        return table.roof._replace(bytes_per_s=table.roof.bytes_per_s * times)
    bandwidth = gpu.bandwidth_bytes_per_s / relative.bandwidth_bytes_per_s
    return Roof(
        _ops_per_s(gpu, relative, table, precision),
        table.roof.bytes_per_s * bandwidth,
        table.roof.start_s,
    )


def _ops_per_s(gpu: Gpu, relative: Gpu, table: Table, precision: str) -> float:
    """The rate of the units: as stated, or as many times the relative's as it has multiprocessors
    and clock.
    """
    if precision not in _TENSOR:
        return flops_per_s(gpu, precision)
    stated = getattr(gpu.tensor_ops_per_s, _TENSOR[precision])
    if stated is not None:
        return float(stated)
    times = gpu.num_multiprocessors / relative.num_multiprocessors
    if gpu.clock_khz and relative.clock_khz:
        times *= gpu.clock_khz / relative.clock_khz
    return table.roof.ops_per_s * times


def is_alike(gpu: Gpu, other: Gpu) -> bool:
    """True if two GPUs have the same capability and about as many multiprocessors."""
    return gpu.compute_capability == other.compute_capability and (
        abs(math.log(gpu.num_multiprocessors / other.num_multiprocessors)) <= math.log(_ALIKE)
    )


def _distance(gpu: Gpu, other: Gpu) -> tuple[bool, bool, float, float]:
    """How far a GPU is from another: capability, architecture, link to peers, and size."""
    (major, minor), (of_major, of_minor) = gpu.compute_capability, other.compute_capability
    return (
        gpu.architecture != other.architecture,
        (gpu.nvlink_bytes_per_s is None) != (other.nvlink_bytes_per_s is None),
        abs(10 * major + minor - 10 * of_major - of_minor),
        abs(math.log(gpu.num_multiprocessors / other.num_multiprocessors)),
    )


def with_roof(match: Match, **rates: float) -> Match:
    """A match with another rate, such as `bytes_per_s` of a link that the caller knows."""
    return replace(match, roof=match.roof._replace(**rates))
