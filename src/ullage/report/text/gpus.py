"""The text report of the catalogue of GPUs.

`ullage gpus` prints a table of all GPUs, by market and generation. `ullage gpus hopper` prints one
group. `ullage gpus h100` prints a picture of one GPU's memory, its figures with the numbers of
their sources, and the list of sources.
"""

from __future__ import annotations

import textwrap
from dataclasses import fields
from itertools import groupby
from typing import TYPE_CHECKING, Final

from rich.markup import escape
from rich.table import Table

from ullage.gpus import EstimateOnlyGpu, Gpu, Segment, TensorRates, sources_of
from ullage.gpus.levels import MemoryLevel, memory_levels
from ullage.gpus.measured_memory import MeasuredMemory, stored_memory
from ullage.report.document.gpus import list_sources, name_basis
from ullage.units import GB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ullage.gpus.gpu import Entry


_TERA: Final = 1000 * GB
# The widths of the boxes in the memory picture; the level nearest to the SMs is the narrowest.
_INSIDE: Final = (20, 24, 28, 32, 36, 40)
_WIDEST: Final = 42
_WIDTH: Final = 80
_MEMORY_IS: Final = (
    "\nMemory as CUDA reports it. exact: read to the byte; assumed: read rounded, or\n"
    "taken from GPUs alike. FP16: 10^12 operations a second of the tensor cores."
)
_ESTIMATE_ONLY: Final = (
    "\nEstimate only: without CUDA, so `ullage run` cannot play it. Sizes on the box."
)
_HOW_TO_GO_ON: Final = (
    "\n`ullage gpus NAME` shows every figure of one, with its sources; `ullage gpus\n"
    "hopper` lists a group: a generation, a capability, a market or a maker."
)


def print_gpus(gpus: Sequence[Gpu], others: Sequence[EstimateOnlyGpu], console: Console) -> None:
    """Prints a line for each GPU, by groups: its slug, memory, bandwidth, SMs and FP16 rate."""
    lines = [_columns("GPU", "memory", "", "type", "bandwidth", "SMs", "FP16")]
    for heading, group in groupby(sorted(gpus, key=_order), key=_heading):
        lines += ["", heading, *(_columns(*_line(gpu)) for gpu in group)]
    for vendor, sold in groupby(others, key=lambda other: other.vendor):
        lines += [
            "",
            f"{vendor}, estimate only",
            *(_columns(*_other_line(other)) for other in sold),
        ]
    lines += [_MEMORY_IS] if gpus else []
    lines += [_ESTIMATE_ONLY] if others else []
    console.print("\n".join([*lines, _HOW_TO_GO_ON]), markup=False, highlight=False)


def print_gpu(entry: Entry, console: Console) -> None:
    """Prints all about one GPU: a picture of its memory, and its figures with their sources."""
    sources = sources_of(entry)
    numbers = {source: number for number, source in enumerate(list_sources(entry), start=1)}
    console.print(escape(entry.name), style="bold", highlight=False)
    if isinstance(entry, Gpu):
        console.print(f"\n{_draw_memory_levels(entry)}\n", markup=False, highlight=False)
    else:
        console.print(_ESTIMATE_ONLY, markup=False, highlight=False)
        console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    table.add_column("value")
    table.add_column("source", style="dim")
    rows = _rows(entry) if isinstance(entry, Gpu) else _other_rows(entry)
    for label, value, figure in rows:
        table.add_row(label, escape(value), " ".join(str(numbers[s]) for s in sources[figure]))
    console.print(table)
    memory = stored_memory(entry.slug) if isinstance(entry, Gpu) else None
    if memory is not None:
        console.print("\n".join(_measured_lines(memory)), markup=False, highlight=False)
    console.print("\nSources (*: cited from memory, not opened)", highlight=False)
    for source, number in numbers.items():
        first = f"  {number:>2}{' ' if source.is_opened else '*'} "
        title = textwrap.fill(source.title, _WIDTH, initial_indent=first, subsequent_indent=" " * 6)
        console.print(title, markup=False, highlight=False, soft_wrap=True)
        # A URL is never wrapped, so that a terminal can open it.
        console.print(f"      {source.url}", markup=False, highlight=False, soft_wrap=True)


def _measured_lines(memory: MeasuredMemory) -> list[str]:
    """What `ullage diff` has kept of a record."""
    versions = [f"torch {memory.torch}"]
    versions += [] if memory.driver is None else [f"driver {memory.driver}"]
    return [
        f"\nMeasured here, {memory.date}, {', '.join(versions)}",
        f"  context              {format_bytes(memory.context_bytes)}",
        *(
            f"  {f'{name} workspace':<20} {format_bytes(size)}, the largest block"
            for name, size in memory.workspace_bytes.items()
        ),
    ]


def _order(gpu: Gpu) -> tuple[int, tuple[int, int], int, str]:
    return list(Segment).index(gpu.segment), gpu.compute_capability, gpu.total_bytes, gpu.slug


def _heading(gpu: Gpu) -> str:
    return f"{gpu.segment.value}, {gpu.architecture}, {_capability(gpu)}"


def _columns(*cells: str) -> str:
    slug, memory, basis, kind, bandwidth, sms, fp16 = cells
    return f"{slug:<21}{memory:>10}  {basis:<8}{kind:<8}{bandwidth:>10}{sms:>5}{fp16:>6}".rstrip()


def _line(gpu: Gpu) -> tuple[str, ...]:
    return (
        gpu.slug,
        format_bytes(gpu.total_bytes, digits=2),
        name_basis(is_exact=gpu.is_total_exact),
        gpu.memory_type,
        _format_rate(gpu.bandwidth_bytes_per_s),
        str(gpu.num_multiprocessors),
        _tera(gpu.tensor_ops_per_s.fp16),
    )


def _other_line(other: EstimateOnlyGpu) -> tuple[str, ...]:
    sizes = other.memory_sizes_gb
    span = f"{sizes[0]} GB" if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]} GB"
    rate = _format_rate(other.bandwidth_bytes_per_s)
    return other.slug, span, "", other.memory_type, rate, "", _tera(other.tensor_ops_per_s.fp16)


def _rows(gpu: Gpu) -> list[tuple[str, str, str]]:
    """(label, value, the figure whose sources are shown beside it)."""
    return [
        ("names", ", ".join((gpu.slug, *gpu.aliases)), "name"),
        ("sold for", gpu.segment.value, "segment"),
        ("architecture", gpu.architecture, "architecture"),
        ("compute capability", _capability(gpu), "compute_capability"),
        ("size on the box", f"{gpu.nominal_size} {gpu.memory_type}", "nominal_size"),
        ("memory", _total(gpu), "total_bytes"),
        ("context, assumed", _context(gpu), "context_bytes"),
        ("bandwidth", _format_rate(gpu.bandwidth_bytes_per_s), "bandwidth_bytes_per_s"),
        ("memory bus", _unit(gpu.memory_bus_bits, "bits"), "memory_bus_bits"),
        ("memory clock", _megahertz(gpu.memory_clock_khz), "memory_clock_khz"),
        ("clock", _megahertz(gpu.clock_khz), "clock_khz"),
        ("SMs", str(gpu.num_multiprocessors), "num_multiprocessors"),
        ("L2", "unknown" if gpu.l2_bytes is None else format_bytes(gpu.l2_bytes), "l2_bytes"),
        *_limits(gpu),
        ("tensor cores", _rates(gpu.tensor_ops_per_s), "tensor_ops_per_s"),
        ("form", gpu.form, "form"),
        ("host link", gpu.host_link, "host_link"),
        ("NVLink", _format_rate(gpu.nvlink_bytes_per_s) or "none", "nvlink_bytes_per_s"),
    ]


def _limits(gpu: Gpu) -> list[tuple[str, str, str]]:
    optin, per_sm = gpu.shared_bytes_per_block_optin, gpu.shared_bytes_per_multiprocessor
    l1_bytes = gpu.l1_bytes_per_multiprocessor
    return [
        ("threads per SM", str(gpu.threads_per_multiprocessor), "threads_per_multiprocessor"),
        ("blocks per SM", str(gpu.blocks_per_multiprocessor), "blocks_per_multiprocessor"),
        ("registers per SM", str(gpu.registers_per_multiprocessor), "registers_per_multiprocessor"),
        ("L1 per SM", format_bytes(l1_bytes), "l1_bytes_per_multiprocessor"),
        ("shared per SM", format_bytes(per_sm), "shared_bytes_per_multiprocessor"),
        ("shared per block", format_bytes(optin), "shared_bytes_per_block_optin"),
    ]


def _other_rows(other: EstimateOnlyGpu) -> list[tuple[str, str, str]]:
    sizes = ", ".join(map(str, other.memory_sizes_gb))
    shared = ", shared with the CPU" if other.is_memory_unified else ""
    cores = "GPU cores" if other.vendor == "Apple" else "compute units"
    return [
        ("names", ", ".join((other.slug, *other.aliases)), "name"),
        ("maker", other.vendor, "vendor"),
        ("sold for", other.segment.value, "segment"),
        ("architecture", other.architecture, "architecture"),
        ("memory", f"{sizes} GB {other.memory_type}{shared}", "memory_sizes_gb"),
        ("bandwidth", _format_rate(other.bandwidth_bytes_per_s), "bandwidth_bytes_per_s"),
        (cores, _unit(other.num_cores, ""), "num_cores"),
        ("matrix units", _rates(other.tensor_ops_per_s), "tensor_ops_per_s"),
    ]


def _total(gpu: Gpu) -> str:
    low, high = (format_bytes(end, digits=2) for end in (gpu.total_low_bytes, gpu.total_high_bytes))
    lines = [
        f"{format_bytes(gpu.total_bytes, digits=2)}, {name_basis(is_exact=gpu.is_total_exact)}",
        f"{gpu.total_bytes:,} bytes",
        f"between {low} and {high}",
        gpu.total_note,
    ]
    return "\n".join(lines)


def _context(gpu: Gpu) -> str:
    low, high = format_bytes(gpu.context_low_bytes), format_bytes(gpu.context_high_bytes)
    return f"{format_bytes(gpu.context_bytes)}, between {low} and {high}"


def _rates(rates: TensorRates) -> str:
    stated = [(field.name.upper(), getattr(rates, field.name)) for field in fields(rates)]
    known = [f"{name} {_tera(rate)}" for name, rate in stated if rate is not None]
    return f"{', '.join(known)} x 10^12/s" if known else "none, or unknown"


def _tera(rate: int | None) -> str:
    return "" if rate is None else f"{rate / _TERA:.{0 if rate >= 100 * _TERA else 1}f}"


def _capability(gpu: Gpu) -> str:
    return ".".join(map(str, gpu.compute_capability))


def _unit(value: int | None, unit: str) -> str:
    return "unknown" if value is None else f"{value} {unit}".rstrip()


def _megahertz(khz: int | None) -> str:
    return "unknown" if khz is None else f"{khz / 1000:.0f} MHz"


def _draw_memory_levels(gpu: Gpu) -> str:
    """Draws the levels as boxes from top to bottom, each wider than the one above it."""
    levels = memory_levels(gpu)
    boxed = [level for level in levels if level.name not in {"host link", "NVLink"}]
    lines = [_draw_edge(None, _INSIDE[0])]
    for index, level in enumerate(boxed):
        inside = _INSIDE[index]
        below = _INSIDE[index + 1] if index + 1 < len(boxed) else None
        lines += [_draw_body(level, inside), _draw_edge(inside, below)]
    return "\n".join([*lines, *_draw_links(levels[len(boxed) :])])


def _format_rate(bytes_per_s: int | None) -> str:
    """Formats a bandwidth: "3350 GB/s", "33.5 TB/s"; empty if unknown."""
    if bytes_per_s is None:
        return ""
    if bytes_per_s >= 10 * _TERA:
        return f"{bytes_per_s / _TERA:.1f} TB/s"
    digits = 0 if bytes_per_s >= 100 * GB else 1
    return f"{bytes_per_s / GB:.{digits}f} GB/s"


def _draw_body(level: MemoryLevel, inside: int) -> str:
    size = "?" if level.num_bytes is None else format_bytes(level.num_bytes)
    gap = inside - 2 - len(level.name) - len(size)
    box = f"| {level.name}{'' if gap > 0 else ' '}{' ' * max(gap, 0)}{size} |"
    beside = ", ".join(text for text in (_format_rate(level.bytes_per_s), level.note) if text)
    return f"{box:^{_WIDEST}}  {beside}".rstrip()


def _draw_edge(above: int | None, below: int | None) -> str:
    widest = max(width for width in (above, below) if width is not None)
    return f"{'+' + '-' * widest + '+':^{_WIDEST}}".rstrip()


def _draw_links(links: Sequence[MemoryLevel]) -> list[str]:
    lines = []
    for link in links:
        rate = _format_rate(link.bytes_per_s)
        each = f"{rate} each way" if link.name == "host link" and rate else rate
        beside = ", ".join(text for text in (each, link.note) if text)
        lines += [f"{'||':^{_WIDEST}}".rstrip(), f"{link.name:^{_WIDEST}}  {beside}"]
    return lines
