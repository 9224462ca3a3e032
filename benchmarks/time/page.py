"""Writes docs/results/time.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.provenance import made_by
from benchmarks.results import publish
from benchmarks.time.scores import Held, Score, is_long, score
from ullage.clock.grid import Floats
from ullage.clock.relatives import COLLECTIVES
from ullage.clock.table import load_widths
from ullage.clock.work import Kind

LARGE_BYTES = 2**20
MEDIAN, P90 = 0.03, 0.10
HEAD = """# Kernel times

`src/ullage/clock/` reads tables of matrix products, attention and collectives that were condensed
from NVIDIA's own measurements (aiconfigurator-core 0.12.0, Apache-2.0).

{made_by}

A random fifth of the shapes of every table (seed 19) was left out before the table was made. The
errors below are those of the predictions for these shapes, relative to the measured time. The last
columns are those of a roofline at the stated rates. "Inside" is the share of the left-out
measurements that the interval holds; it is meant to be 90 %. The aim is a median of at most 3 %
and a ninth decile of at most 10 %.

Products in bfloat16 are those of torch's linear layer with random numbers in both factors; those
in float8 and float4 are an inference engine's and **have the quantisation of their input in
them**. Attention is that of vLLM's kernels. Nothing is measured of the backward pass, of training
kernels, and of L4, A30, H100 PCIe and A100 PCIe.
"""
NETWORK = """## Collectives

NCCL's all-reduce, all-gather, reduce-scatter and all-to-all together, and vLLM's custom all-reduce
in a CUDA graph, among 2, 4 and 8 GPUs of one machine.
"""
PLANES = """## Values of n and k that no shape has

Here whole values of n and of k are left out, a quarter of each, so that the next measured value is
up to an octave away. Shapes of real models often lie so.
"""
STAND_INS = """What stands in, and the factors of its prediction between which nine in ten
measurements lie.
"""
STREAMING = """
The shares of the stated bandwidth at which kernels stream 512 MiB or more (first decile, median,
ninth decile), and the fastest kernel:
"""
JUMPS = """Measurements are not exact: {jumps}
"""


def write_page(rows: Sequence[Held], planes: Mapping[tuple[str, str], Floats], jumps: str) -> None:
    """Writes the page from what was left out."""
    is_collective = [row.table.kind in COLLECTIVES for row in rows]
    kernels = [row for row, of_network in zip(rows, is_collective, strict=True) if not of_network]
    network = [row for row, of_network in zip(rows, is_collective, strict=True) if of_network]
    parts = [
        HEAD.format(made_by=made_by("benchmarks.time.condense")),
        "## Matrix products and attention\n",
        _table(kernels),
        "Of kernels that take 20 us or more:\n",
        _table([row for row in kernels if is_long(row)]),
        NETWORK,
        _table(network),
        "Of messages of 1 MiB or more:\n",
        _table([row for row in network if row.work.num_bytes >= LARGE_BYTES]),
        PLANES,
        _planes(planes),
        _widths(),
        _missed(rows),
        JUMPS.format(jumps=jumps),
    ]
    publish("kernel-times", "\n".join(parts))


def _groups(rows: Sequence[Held]) -> dict[tuple[str, str], list[Held]]:
    groups: dict[tuple[str, str], list[Held]] = {}
    for row in rows:
        of_network = row.table.kind in COLLECTIVES
        kind = row.table.kernel if of_network else f"{row.table.kind.value}, {row.table.precision}"
        groups.setdefault((row.table.gpu, kind), []).append(row)
    return groups


def _table(rows: Sequence[Held]) -> str:
    lines = [
        "| GPU | work | shapes | median | p90 | inside | roofline median | roofline p90 | aim |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for (gpu, kind), of_group in _groups(rows).items():
        result = score(of_group)
        lines.append(
            f"| {gpu} | {kind} | {result.count:,} | {_percent(result.median)} | "
            f"{_percent(result.p90)} | {result.inside:.0%} | {_percent(result.roofline_median)} | "
            f"{_percent(result.roofline_p90)} | {_verdict(result)} |"
        )
    return "\n".join(lines) + "\n"


def _planes(planes: Mapping[tuple[str, str], Floats]) -> str:
    lines = ["| GPU | precision | shapes | median | p90 |", "|---|---|---:|---:|---:|"]
    for (gpu, precision), errors in planes.items():
        middle, ninth = (float(np.quantile(np.abs(errors), part)) for part in (0.5, 0.9))
        lines.append(
            f"| {gpu} | {precision} | {len(errors):,} | {_percent(middle)} | {_percent(ninth)} |"
        )
    return "\n".join(lines) + "\n"


def _widths() -> str:
    widths = load_widths()
    start = widths.start_s
    rows = {
        "the table of a GPU with the same capability and as many multiprocessors": (
            widths.same_architecture
        ),
        "the table of any other GPU": widths.other_architecture,
        "bfloat16's efficiency for float8, n of 4096 or more": widths.other_precision,
        "one rate and one start for all shapes, m of 128 or more": widths.constant_rate,
    }
    lines = [
        "## Where there is no table\n",
        STAND_INS,
        "| stands in | low | high |",
        "|---|---:|---:|",
        *(f"| {name} | {width.low:.2f} | {width.high:.2f} |" for name, width in rows.items()),
        STREAMING,
        "| GPU | low | likely | high | start |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {gpu} | {low:.2f} | {likely:.2f} | {high:.2f} | {1e6 * start[gpu]:.1f} us |"
            for gpu, (low, likely, high) in widths.streaming.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _missed(rows: Sequence[Held]) -> str:
    scores = [score(of_group) for of_group in _groups(rows).values()]
    met = sum(result.median <= MEDIAN and result.p90 <= P90 for result in scores)
    gemm = [row for row in rows if row.table.kind is Kind.MATRIX_PRODUCT]
    medians = sum(result.median <= MEDIAN for result in scores)
    ninths = sum(result.p90 <= P90 for result in scores)
    return (
        "## What is not met\n\n"
        f"Of {len(scores)} rows of the lists of all kernels and all collectives, {met} meet both "
        f"aims,\n{medians} that of the median, {ninths} that of the ninth decile. The median error "
        f"of all {len(gemm):,} left-out matrix products is {_percent(score(gemm).median)}.\n"
    )


def _verdict(result: Score) -> str:
    missed = [
        name
        for name, is_met in (("median", result.median <= MEDIAN), ("p90", result.p90 <= P90))
        if not is_met
    ]
    return "met" if not missed else f"not met: {', '.join(missed)}"


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"
