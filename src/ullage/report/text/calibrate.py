"""The measured rates of a GPU, as fractions of the maker's."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from ullage.gpus.rates import Rates, Speed
from ullage.report.terminal import make_grid, print_parts


def print_rates(rates: Rates, console: Console) -> None:
    """Prints each kind of work with its fraction of the stated rate and its latency."""
    table = make_grid("left", "right", "right")
    table.add_row("", "of the stated rate", "to begin", style="dim")
    for name, speed in _rows(rates):
        table.add_row(name, f"{100 * speed.frac:.1f} %", f"{1e6 * speed.start_s:.1f} us")
    table.add_row("launch of a kernel, by the host", "", f"{1e6 * rates.launch_s:.1f} us")
    print_parts(
        [
            Text(f"{rates.device} ({rates.gpu})", style="bold"),
            Text(f"  driver {rates.driver or 'unknown'}, torch {rates.torch}, {rates.date}"),
            Text(),
            table,
            *(Text(f"not measured: {what}: {why}") for what, why in rates.skipped.items()),
        ],
        console,
    )


def _rows(rates: Rates) -> Iterator[tuple[str, Speed]]:
    for precision, speed in rates.matmul.items():
        yield f"matrix products, {precision}", speed
    for part, speed in rates.attention.items():
        yield f"attention {part}, bfloat16", speed
    yield "memory", rates.memory
    yield "from the host", rates.to_device
    yield "to the host", rates.to_host
    if rates.peers is not None:
        yield "to other GPUs", rates.peers
