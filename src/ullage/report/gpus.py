"""The catalogue of GPUs, for people and for programs.

`ullage gpus` prints a table of all, or everything about one: each figure with the ids of its
sources, which are listed below it. `--json` gives the same as one document.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ullage.gpus import sources_of
from ullage.units import GB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ullage.gpus import Gpu, Source

__all__ = ["gpus_document", "print_gpu", "print_gpus"]

SCHEMA: Final = "ullage.gpus/1"


def gpus_document(gpus: Sequence[Gpu]) -> dict[str, object]:
    """The document `ullage.gpus/1`: each GPU with its figures, and for each figure its sources."""
    sources = {source.id: source for gpu in gpus for source in _sources(gpu)}
    return {
        "schema": SCHEMA,
        "gpus": [
            {
                **asdict(gpu),
                "basis": {
                    "total_bytes": _basis(is_exact=gpu.is_total_exact),
                    "context_bytes": _basis(is_exact=False),
                },
                "sources": {
                    figure: [source.id for source in found]
                    for figure, found in sources_of(gpu).items()
                },
            }
            for gpu in gpus
        ],
        "sources": {key: {"title": s.title, "url": s.url} for key, s in sources.items()},
    }


def print_gpus(gpus: Sequence[Gpu], console: Console) -> None:
    """Prints one line a GPU: memory as CUDA reports it, capability, bandwidth, SMs."""
    table = Table(box=None, pad_edge=False)
    table.add_column("GPU", no_wrap=True)
    for heading in ("memory", "", "capability", "bandwidth", "SMs"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for gpu in gpus:
        table.add_row(
            gpu.slug,
            format_bytes(gpu.total_bytes, digits=2),
            _basis(is_exact=gpu.is_total_exact),
            _capability(gpu),
            _bandwidth(gpu),
            str(gpu.num_multiprocessors),
        )
    console.print(table)
    console.print(
        "\nMemory as CUDA reports it. exact: read to the byte; assumed: read rounded.\n"
        "`ullage gpus NAME` shows every figure of one, with its sources.",
        markup=False,
        highlight=False,
    )


def print_gpu(gpu: Gpu, console: Console) -> None:
    """Prints everything about one GPU, each figure with its sources."""
    found = sources_of(gpu)
    table = Table(box=None, pad_edge=False, title=escape(gpu.name), title_justify="left")
    table.add_column("figure", no_wrap=True)
    table.add_column("value")
    table.add_column("source", overflow="fold", style="dim")
    for label, value, figure in _rows(gpu):
        ids = " ".join(source.id for source in found[figure]) if figure else ""
        table.add_row(label, escape(value), ids)
    console.print(table)
    console.print("\nSources", highlight=False)
    for source in _sources(gpu):
        console.print(Padding(Text(f"{source.id}: {source.title}"), (0, 0, 0, 2)))
        # One line each, however long, so that a terminal can open it.
        console.print(f"    {source.url}", markup=False, highlight=False, soft_wrap=True)


def _rows(gpu: Gpu) -> list[tuple[str, str, str]]:
    """(label, value, the figure whose sources stand beside it)."""
    return [
        ("names", ", ".join((gpu.slug, *gpu.aliases)), "name"),
        ("architecture", gpu.architecture, "architecture"),
        ("compute capability", _capability(gpu), "compute_capability"),
        ("size on the box", f"{gpu.nominal_size} {gpu.memory_type}", "nominal_size"),
        ("memory", _total(gpu), "total_bytes"),
        ("context, assumed", _context(gpu), "context_bytes"),
        ("bandwidth", _bandwidth(gpu), "bandwidth_bytes_per_s"),
        ("memory bus", f"{gpu.memory_bus_bits} bits", "memory_bus_bits"),
        ("memory clock", _megahertz(gpu.memory_clock_khz), "memory_clock_khz"),
        ("clock", _megahertz(gpu.clock_khz), "clock_khz"),
        ("SMs", str(gpu.num_multiprocessors), "num_multiprocessors"),
        ("L2", format_bytes(gpu.l2_bytes), "l2_bytes"),
        *_limits(gpu),
        ("form", gpu.form, "form"),
        ("host link", gpu.host_link, "host_link"),
    ]


def _limits(gpu: Gpu) -> list[tuple[str, str, str]]:
    optin, per_sm = gpu.shared_bytes_per_block_optin, gpu.shared_bytes_per_multiprocessor
    return [
        ("threads per SM", str(gpu.threads_per_multiprocessor), "threads_per_multiprocessor"),
        ("blocks per SM", str(gpu.blocks_per_multiprocessor), "blocks_per_multiprocessor"),
        ("registers per SM", str(gpu.registers_per_multiprocessor), "registers_per_multiprocessor"),
        ("shared per SM", format_bytes(per_sm), "shared_bytes_per_multiprocessor"),
        ("shared per block", format_bytes(optin), "shared_bytes_per_block_optin"),
    ]


def _sources(gpu: Gpu) -> list[Source]:
    """Every source of a GPU once, in the order in which its figures need them."""
    return list(dict.fromkeys(source for found in sources_of(gpu).values() for source in found))


def _total(gpu: Gpu) -> str:
    low, high = (format_bytes(end, digits=2) for end in (gpu.total_low_bytes, gpu.total_high_bytes))
    lines = [
        f"{format_bytes(gpu.total_bytes, digits=2)}, {_basis(is_exact=gpu.is_total_exact)}",
        f"{gpu.total_bytes:,} bytes",
        f"readings: {low} to {high}",
        gpu.total_note,
    ]
    return "\n".join(lines)


def _context(gpu: Gpu) -> str:
    low, high = format_bytes(gpu.context_low_bytes), format_bytes(gpu.context_high_bytes)
    return f"{format_bytes(gpu.context_bytes)}, between {low} and {high}"


def _basis(*, is_exact: bool) -> str:
    return "exact" if is_exact else "assumed"


def _capability(gpu: Gpu) -> str:
    return ".".join(map(str, gpu.compute_capability))


def _bandwidth(gpu: Gpu) -> str:
    return f"{gpu.bandwidth_bytes_per_s / GB:.0f} GB/s"


def _megahertz(khz: int) -> str:
    return f"{khz / 1000:.0f} MHz"
