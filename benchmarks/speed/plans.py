"""Measure how long the layer-scale solve takes, and how good it is proved to be; writes
docs/results/speed.md.

    python -m benchmarks.speed.plans

Chains of 256 layers with 8 treatments each, from keeping all (0) to keeping 6 % for a third more
computation, and a limit on the peak in forward, between and in backward, as `ullage fit` has it.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.search.solver.problem import Problem, Solution
from ullage.search.solver.solve import solve

LAYERS, TREATMENTS, MIB = 256, 8, 2**20
LAYER_S, LAYER_MIB = 2.7e-3, 230.0
KINDS = ("equal", "four kinds", "all unlike")
SHARES = (0.35, 0.6)
GOAL_GAP, GOAL_S = 1e-3, 5.0


def make(kind: str, layers: int = LAYERS) -> Problem:
    """A chain. Treatment k keeps a share that falls from 1 to 0.06, and computes up to a third of
    the layer again.
    """
    random = np.random.default_rng(0)
    sizes = {
        "equal": np.full(layers, LAYER_MIB),
        "four kinds": np.repeat(random.uniform(50, 400, 4), layers // 4),
        "all unlike": random.uniform(50, 400, layers),
    }[kind]
    kept = (sizes[:, None] * np.linspace(1, 0.06, TREATMENTS) * MIB).astype(np.int64)
    again = np.linspace(0, 1, TREATMENTS) ** 1.7 / 3
    extra_s = (sizes / LAYER_MIB * LAYER_S)[:, None] * again
    held, own, rest = [], [], []
    order = [*range(layers), -1, *reversed(range(layers))]
    for stretch, layer in enumerate(order):
        held.append((np.arange(layers) < (layers if layer < 0 else layer)).astype(np.float64))
        own.append(layer)
        beside = 500.0 if layer < 0 else sizes[layer] * (1.1 if stretch < layers else 1.3)
        rest.append(np.full(TREATMENTS, int(beside * MIB)))
    return Problem(kept, extra_s, np.array(held), np.array(own), np.array(rest, dtype=np.int64))


def main() -> None:
    """Measures, and writes the page."""
    lines = [
        "# How fast plans are solved",
        "",
        made_by("benchmarks.speed.plans"),
        "",
        f"There are {LAYERS} layers with {TREATMENTS} treatments each. The goal is a",
        f"gap of {100 * GOAL_GAP:.1f} % in {GOAL_S:.0f} s. The gap is the distance to a proven",
        "bound (Lagrangian dual, counts of equal layers, and HiGHS if these are not enough).",
        "",
        "| layers | limit, of the peak as it is | seconds | gap | reached |",
        "|---|---|---|---|---|",
    ]
    for kind in KINDS:
        problem = make(kind)
        peak = problem.peak_bytes(np.zeros(LAYERS, dtype=np.int64))
        for share in SHARES:
            started_s = time.perf_counter()
            answer = solve(problem, int(share * peak))
            took_s = time.perf_counter() - started_s
            gap = answer.gap if isinstance(answer, Solution) else 1.0
            is_reached = "yes" if gap <= GOAL_GAP and took_s <= GOAL_S else "no"
            figures = f"{100 * share:.0f} % | {took_s:.1f} | {100 * gap:.3f} %"
            lines.append(f"| {kind} | {figures} | {is_reached} |")
    publish("speed-plans", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
