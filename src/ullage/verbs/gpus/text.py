"""The views of the catalogue of GPUs: all of them by market and generation, or one."""

from __future__ import annotations

from dataclasses import fields
from itertools import groupby
from typing import TYPE_CHECKING, Final

from ullage.answers import block_kinds as b
from ullage.facts.gpus import EstimateOnlyGpu, Gpu, Segment, TensorRates, sources_of
from ullage.facts.gpus.levels import MemoryLevel, memory_levels
from ullage.facts.gpus.measured_memory import MeasuredMemory, stored_memory
from ullage.ground.units import GB, format_bytes
from ullage.verbs.gpus.document import list_sources, name_basis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ullage.facts.gpus.gpu import Entry


_TERA: Final = 1000 * GB
# The widths of the boxes in the memory picture; the level nearest to the SMs is the narrowest.
_INSIDE: Final = (20, 24, 28, 32, 36, 40)
_WIDEST: Final = 42
_MEMORY_IS: Final = (
    "",
    "Memory as CUDA reports it. exact: read to the byte; assumed: read rounded, or",
    "taken from GPUs alike. FP16: 10^12 operations a second of the tensor cores.",
)
_ESTIMATE_ONLY: Final = (
    "Estimate only: without CUDA, so `ullage run` cannot play it. Sizes on the box."
)
_HOW_TO_GO_ON: Final = (
    "",
    "`ullage gpus NAME` shows every figure of one, with its sources; `ullage gpus",
    "hopper` lists a group: a generation, a capability, a market or a maker.",
)


def gpus_blocks(gpus: Sequence[Gpu], others: Sequence[EstimateOnlyGpu]) -> Iterator[b.Block]:
    """A line for each GPU, by groups: its slug, memory, bandwidth, SMs and FP16 rate."""
    lines = [_columns("GPU", "memory", "", "type", "bandwidth", "SMs", "FP16")]
    for heading, group in groupby(sorted(gpus, key=_order), key=_heading):
        lines += ["", heading, *(_columns(*_line(gpu)) for gpu in group)]
    for vendor, sold in groupby(others, key=lambda other: other.vendor):
        lines += ["", f"{vendor}, estimate only"]
        lines += [_columns(*_other_line(other)) for other in sold]
    lines += _MEMORY_IS if gpus else ()
    lines += ["", _ESTIMATE_ONLY] if others else []
    yield b.Lines((*lines, *_HOW_TO_GO_ON))


def gpu_blocks(entry: Entry) -> Iterator[b.Block]:
    """All about one GPU: a picture of its memory, and its figures with their sources."""
    sources = sources_of(entry)
    numbers = {source: number for number, source in enumerate(list_sources(entry), start=1)}
    yield b.Headline.of(entry.name, b.Tone.STRONG)
    if isinstance(entry, Gpu):
        yield b.SPACE
        yield b.Lines(_draw_memory_levels(entry))
    else:
        yield b.Note(_ESTIMATE_ONLY, is_apart=True)
    yield b.SPACE
    rows: b.Rows = []
    for label, value, figure in _rows(entry) if isinstance(entry, Gpu) else _other_rows(entry):
        cited = " ".join(str(numbers[source]) for source in sources[figure])
        rows.append([label, (b.Word(value),), b.Word(cited, b.Tone.FAINT)])
    label_column = b.Column(overflow=b.Overflow.KEEP)
    yield b.Table((label_column, b.LEFT, b.LEFT), rows, ("figure", "value", "source"), indent=0)
    memory = stored_memory(entry.slug) if isinstance(entry, Gpu) else None
    if memory is not None:
        yield from _measured(memory)
    yield b.Title("Sources (*: cited from memory, not opened)", b.Tone.PLAIN)
    for source, number in numbers.items():
        lead = b.Word(f"{number:>2}{' ' if source.is_opened else '*'}")
        yield b.Note(source.title, indent=2, hang=6, lead=lead)
        # A URL is never wrapped, so that a terminal can open it.
        yield b.Note(source.url, b.Tone.PLAIN, b.Overflow.KEEP, indent=6)


def _measured(memory: MeasuredMemory) -> Iterator[b.Block]:
    """The figures that `ullage diff` has kept of a record."""
    versions = [f"torch {memory.torch}"]
    versions += [] if memory.driver is None else [f"driver {memory.driver}"]
    yield b.Title(f"Measured here, {memory.date}, {', '.join(versions)}", b.Tone.PLAIN)
    rows: b.Rows = [["context", format_bytes(memory.context_bytes)]]
    for name, size in memory.workspace_bytes.items():
        rows.append([f"{name} workspace", f"{format_bytes(size)}, the largest block"])
    yield b.Table((b.LEFT, b.LEFT), rows)


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


def _draw_memory_levels(gpu: Gpu) -> tuple[str, ...]:
    """Draws the levels as boxes from top to bottom, each wider than the one above it."""
    levels = memory_levels(gpu)
    boxed = [level for level in levels if level.name not in {"host link", "NVLink"}]
    lines = [_draw_edge(None, _INSIDE[0])]
    for index, level in enumerate(boxed):
        inside = _INSIDE[index]
        below = _INSIDE[index + 1] if index + 1 < len(boxed) else None
        lines += [_draw_body(level, inside), _draw_edge(inside, below)]
    return (*lines, *_draw_links(levels[len(boxed) :]))


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
