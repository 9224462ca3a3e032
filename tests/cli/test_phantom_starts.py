"""Starts of vLLM on the phantom beside published ones: the aggregate of the page
docs/results/serve-starts.md, and the arithmetic of its rows.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from benchmarks.serving.phantom_starts import (
    RESULTS,
    load_rows,
    settings,
    table_row,
    tokens_given_bytes,
    why_not,
)
from benchmarks.serving.starts import ask

from ullage.serve.outcome import Engine

RUN: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
ROWS = [row for row in load_rows() if row["name"] in RUN]


def engine_of(row: dict[str, Any]) -> Engine:
    fields = RUN[row["name"]]["engine"]
    return Engine(**{**fields, "ignored": tuple(fields["ignored"])})


def test_bytes_are_within_three_percent_in_the_median_and_inside_the_interval() -> None:
    lines = [table_row(row, RUN[row["name"]], ask(row).width_gib) for row in ROWS]
    assert statistics.median(line["error"] for line in lines) <= 0.03
    assert statistics.median(line["share"] for line in lines) <= 0.5


def test_tokens_are_those_of_the_bytes_to_the_block() -> None:
    for row in ROWS:
        engine = engine_of(row)
        blocks = engine.kv_cache_bytes // engine.block_bytes
        assert (engine.num_blocks, engine.kv_cache_tokens) == (blocks, blocks * engine.block_tokens)


def test_printed_tokens_are_whole_blocks_of_the_printed_bytes() -> None:
    answers = {tokens_given_bytes(row, engine_of(row)) for row in ROWS}
    assert answers <= {"yes", "-"}


def test_a_row_is_told_what_its_release_counts() -> None:
    (row,) = (row for row in load_rows() if row["name"] == "Llama 3.1 8B, RTX A6000")
    command, gpu, environment = settings(row)
    assert gpu == "rtx-a6000" and command[3:] == [
        "--max-model-len", "32768", "--gpu-memory-utilization", "0.9",
    ]  # fmt: skip
    assert environment == {
        "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("gpt2 --serve --engine-version 0.10.2 --gpu l4", "sorts all logits"),
        ("gpt2 --serve --engine-version 0.28.0 --gpu l4 --memory 15GiB", "another size"),
        ("gpt2 --serve --engine-version 0.28.0 --gpu l4 --cached", "no compile cache"),
        ("gpt2 --serve --engine-version 0.28.0 --gpu l4", ""),
    ],
)
def test_what_this_release_cannot_say_is_not_run(command: str, words: str) -> None:
    why = why_not({"command": command})
    assert words in why and bool(words) == bool(why)
