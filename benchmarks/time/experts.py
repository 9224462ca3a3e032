"""The clock's grouped products against NVIDIA's measurements of whole MoE layers; writes
docs/results/time.md.

    python -m benchmarks.time.experts UNPACKED/aiconfigurator_core/systems/data

Needs pyarrow. The wheel aiconfigurator-core 0.12.0 (Apache-2.0) is unpacked by hand; nothing of it
is imported. Nothing is fitted to these measurements: they are all left out.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.clock.costs.grouped import Groups, grouped_cost
from ullage.clock.costs.traffic import Traffic, moved
from ullage.facts.gpus import Gpu, find_gpu

GPUS: Final = {
    "a100_sxm": "a100-80gb", "h100_sxm": "h100-80gb", "h200_sxm": "h200", "l40s": "l40s",
    "b200_sxm": "b200",
}  # fmt: skip
SAMPLE: Final = 400  # of a GPU's rows and a kind of distribution, evenly spaced
SIZES: Final = ((0, 16), (16, 256), (256, 1 << 30))  # rows of an expert


def main() -> None:
    """Compares, prints, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    root = parser.parse_args().data
    rows = []
    for folder, slug in GPUS.items():
        measured = list(read_rows(root / folder / "moe"))
        for is_balanced in (True, False):
            of_kind = [
                row for row in measured if (row["distribution"] == "balanced") == is_balanced
            ]
            chosen = of_kind[:: max(1, len(of_kind) // SAMPLE)]
            rows += table_rows(find_gpu(slug), chosen, "balanced" if is_balanced else "uneven")
    publish("expert-times", page(rows))
    print("\n".join(rows))


def read_rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The layers in 16 bits of the newest vLLM, or of the newest engine that there is."""
    files = sorted(folder.glob("vllm/*/moe_perf.parquet")) or sorted(
        folder.glob("*/*/moe_perf.parquet")
    )
    if not files:
        return
    for row in pq.read_table(files[-1]).to_pylist():
        if row["moe_dtype"] == "bfloat16" and row["moe_ep_size"] == 1:
            yield row


def predict(gpu: Gpu, row: Mapping[str, Any]) -> float:
    """Seconds of two grouped products, the activation, and the rows' way there and back."""
    experts = row["num_experts"]
    inner = max(1, row["inter_size"] // row["moe_tp_size"])
    rows = row["num_tokens"] * row["topk"]
    hidden, active = row["hidden_size"], min(experts, rows)
    up = grouped_cost(gpu, Groups(active, rows, 2 * inner, hidden, is_weight=False), "bfloat16")
    down = grouped_cost(gpu, Groups(active, rows, hidden, inner, is_weight=False), "bfloat16")
    beside = (
        moved(gpu, Traffic.of(6.0 * rows * inner)).s + moved(gpu, Traffic.of(4.0 * rows * hidden)).s
    )
    return up.duration.s + down.duration.s + beside


def table_rows(gpu: Gpu, measured: list[Mapping[str, Any]], kind: str) -> Iterator[str]:
    """A line for each size of an expert's share."""
    quotients: dict[tuple[int, int], list[float]] = {}
    for row in measured:
        share = row["num_tokens"] * row["topk"] / row["num_experts"]
        size = next(size for size in SIZES if size[0] <= share < size[1])
        quotients.setdefault(size, []).append(row["latency"] * 1e-3 / predict(gpu, row))
    for low, high in SIZES:
        values = sorted(quotients.get((low, high), []))
        if len(values) < 10:
            continue
        tenth, ninth = values[len(values) // 10], values[9 * len(values) // 10]
        most = "" if high > 1 << 20 else f" to {high}"
        yield (
            f"| {gpu.slug} | {kind} | {low}{most} | {len(values)} "
            f"| {statistics.median(values):.2f} | {tenth:.2f} to {ninth:.2f} |"
        )


def page(rows: list[str]) -> str:
    """The page."""
    return f"""# Grouped products beside measured MoE layers

{made_by("benchmarks.time.experts DATA")}

The clock has no table of grouped products: it takes a grouped product for a batch of products
(`clock/costs/grouped.py`), whose time is that of one with as many rows, and of all experts'
weights. NVIDIA's measurements (aiconfigurator-core 0.12.0, Apache-2.0) are of whole layers of
inference engines in 16 bits on GPUs that have all experts: routing, both products, the activation,
and the sum. Here is how many times the clock's prediction of the two products, the activation and
the rows' way they take. None of the measurements was used for the likely value; the interval of a
grouped product is 0.7 to 1.8 times of it by the H100's rows. The quotients hold the engines' own
work as well. Up to {SAMPLE} layers of a GPU and kind of routing, evenly spaced in the table.

| GPU | routing | rows of an expert | layers | measured / predicted | tenth to ninth decile |
|---|---|---|--:|--:|---|
{chr(10).join(rows)}


"""


if __name__ == "__main__":
    main()
