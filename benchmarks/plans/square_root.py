"""Uniform, square-root and optimal segments of a chain side by side, on the phantom; writes
docs/results/explain.md.

    python -m benchmarks.plans.square_root --python ENVIRONMENT/bin/python
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plans.chain_report import render_segments
from benchmarks.plans.chains import compare_segments
from benchmarks.plans.closed_forms import (
    best_num_segments,
    checkpointed_peak,
    least_checkpointed_peak,
)
from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.act.techniques.means.tiling import even_lengths
from ullage.players.phantom.torch_build import find_torch

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("chain.py")
IMAGES = Path(__file__).with_name("programs") / "images.py"
MODEL = ("resnet152", "32")
MAIN = "from ullage.cli import main; main()"
LAYERS = (16, 64, 144)
# Beside what is checkpointed, backward holds two gradients.
GRADIENTS = 2
BAR = 40


@dataclass(frozen=True, slots=True)
class Row:
    """A segmentation: what the formula says, in units with the gradients, and what was seen."""

    name: str
    lengths: tuple[int, ...]
    said_units: int
    seen_units: float = 0.0
    layers_run: int = 0


def rows(layers: int) -> Iterator[Row]:
    """Nothing checkpointed, some even segments, the square root of the layers, and the optimum."""
    yield Row("none", (), layers + GRADIENTS)
    best = best_num_segments(layers)
    for count in sorted({2, best // 2, best, 2 * best, layers} - {0, 1}):
        name = "square root" if count == best else "one each" if count == layers else "uniform"
        said = checkpointed_peak(layers, count) + GRADIENTS
        yield Row(f"{name}, {count}", even_lengths(layers, count), said)
    lengths = shrinking(layers)
    yield Row(f"optimal, {len(lengths)}", lengths, least_checkpointed_peak(layers) + GRADIENTS)


def shrinking(layers: int) -> tuple[int, ...]:
    """The lengths with which each segment, made again beside the checkpoints up to its own, takes
    the least peak.
    """
    peak, lengths, left = least_checkpointed_peak(layers), list[int](), layers
    while left:
        lengths.append(min(left, peak - len(lengths) - 1))
        left -= lengths[-1]
    return tuple(lengths)


def measure(layers: int, python: str) -> list[Row]:
    """All rows, in one run of the program."""
    wanted = list(rows(layers))
    text = json.dumps([row.lengths for row in wanted])
    words = ["run", "--json", "--python", python, "--", str(PROGRAM), str(layers), text]
    with tempfile.TemporaryDirectory(prefix="ullage-") as directory:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *words],
            cwd=directory, capture_output=True, text=True, check=True,
        )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.startswith('{"peak_units"')]
    return [
        Row(row.name, row.lengths, row.said_units, found["peak_units"], found["layers_run"])
        for row, found in zip(wanted, map(json.loads, lines), strict=True)
    ]


def render(tables: dict[int, list[Row]], torch: str) -> str:
    """The page."""
    lines = [
        "# Segments of a chain",
        "",
        "A chain of equal layers, each of which saves its output, is checkpointed in segments. The",
        "table shows the peak in units of a layer's output, including two gradients, by the",
        "formulas of `benchmarks/plans/closed_forms.py` and on the phantom, and the number",
        "of layers that run again. *uniform* and *square root* are even segments (Chen et al.",
        "2016); *optimal* ones shrink towards the end, because fewer checkpoints are live during",
        "their recomputation.",
        "",
        made_by("benchmarks.plans.square_root", torch=torch),
        "",
    ]
    for layers, found in tables.items():
        most = max(row.seen_units for row in found)
        lines += [
            f"## {layers} layers",
            "",
            "| segments | said | the phantom | run again | |",
            "|---|--:|--:|--:|---|",
        ]
        for row in found:
            again = 100 * (row.layers_run - layers) / layers
            bar = "█" * max(1, round(BAR * row.seen_units / most))
            lines.append(
                f"| {row.name} | {row.said_units} | {row.seen_units:g} | {again:.0f} % | `{bar}` |"
            )
        lines.append("")
    return "\n".join(lines)


def of_a_model(python: str) -> str:
    """A real model's chain."""
    program = [str(IMAGES), *MODEL]
    found = compare_segments(program, gpu="h100-80gb", python=python)
    text = render_segments(found).replace(str(IMAGES), f"benchmarks/plans/programs/{IMAGES.name}")
    return "\n".join(
        [
            "## A model",
            "",
            "The same with the `torch.nn.Sequential` of a program that saves the most. Different",
            "modules need segments of different lengths, and all checkpoints are live outside of",
            "the chain: *optimal* counts both, by the saved memory of each module.",
            "",
            "| segments of a model's layers |",
            "|---|",
            *(f"| `{line.rstrip()}` |" for line in text.splitlines() if line.strip()),
            "",
        ]
    )


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    python = parser.parse_args().python
    torch = find_torch(python).version
    chains = render({layers: measure(layers, python) for layers in LAYERS}, torch)
    publish("square-root", f"{chains}\n{of_a_model(python)}")


if __name__ == "__main__":
    main()
