"""Starts of vLLM on the phantom beside published ones: what the page says of them in all."""

from __future__ import annotations

import json
from statistics import median

from benchmarks.serving.phantom_starts import RESULTS, Line, lines_of, load_rows, result_of, why_not
from benchmarks.serving.starts import ask

OUTSIDE = "Qwen3-14B-AWQ, two L4"
"""Both leave more than was printed; docs/results/serving.md says what may be missing."""


def lines() -> list[list[Line]]:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = [row for row in load_rows() if not why_not(row)]
    found = [(row, result_of(row, results)) for row in rows]
    return [lines_of(row, result, ask(row).width_gib) for row, result in found if result]


def test_the_engine_on_the_phantom_leaves_what_published_starts_printed() -> None:
    all_lines = lines()
    assert len(all_lines) == 12
    assert median(abs(kinds[0].error) for kinds in all_lines) < 0.03
    # Where the source does not say which start it saw, it was one of the two.
    outside = [kinds[0].name for kinds in all_lines if not any(line.is_inside for line in kinds)]
    assert outside == [OUTSIDE]
    for kinds in all_lines:
        assert min(abs(line.error) for line in kinds) < (0.04 if kinds[0].name == OUTSIDE else 0.01)
        # The estimate of a later start that is known as such is narrow already.
        assert kinds[0].width_share <= (0.7 if kinds[0].kind == "later" else 0.5)
