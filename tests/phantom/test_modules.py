"""Which module allocated what: programs whose blocks say by their size whose they have to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ullage.explain.owners.modules import attribute_modules
from ullage.log.blocks import read_blocks
from ullage.log.model import Record

pytestmark = pytest.mark.phantom
MIB = 2**20
RunProgram = Callable[..., Any]


def modules_by_size(record: Record) -> dict[int, list[str | None]]:
    """The modules of all blocks of a size, over the whole run."""
    blocks = read_blocks(record)
    owners = attribute_modules(record, blocks)
    names = (*owners.names, None)
    found: dict[int, list[str | None]] = {}
    for size, number in zip(blocks.size_bytes.tolist(), owners.index.tolist(), strict=True):
        found.setdefault(size, []).append(names[number])
    return found


@pytest.mark.parametrize("roots", ["one", "two"])
def test_every_block_belongs_to_the_module_of_its_size(run_program: RunProgram, roots: str) -> None:
    outcome = run_program("modules.py", roots)
    assert outcome.exit_code == 0, outcome.stderr
    found = modules_by_size(outcome.record)
    wrong = {}
    for size, path in outcome.printed.items():
        near = [one for one in found if int(size) <= one <= int(size) + MIB]
        blocks = [path for one in near for path in found[one]]
        assert len(blocks) >= (1 if path is None else 4), f"{path}: {len(blocks)} blocks"
        if set(blocks) != {path}:
            wrong[path] = blocks
    assert not wrong


def test_the_document_lists_modules_whose_bytes_sum_to_the_peak(run_program: RunProgram) -> None:
    outcome = run_program("modules.py", "one")
    assert outcome.exit_code == 0, outcome.stderr
    device = outcome.device
    assert sum(row["bytes"] for row in device["modules"]) == device["peak_allocated_bytes"]
    paths = [row["path"] for row in device["modules"]]
    assert len(paths) == len(set(paths))
    assert "nested.inner" in paths


@pytest.mark.slow
def test_a_model_whose_compilation_is_switched_off_has_its_modules(
    run_program: RunProgram,
) -> None:
    off = run_program("compile/disabled.py", env=(("TORCH_COMPILE_DISABLE", "1"),))
    eager = run_program("compile/disabled.py", "eager")
    assert {one["path"] for one in eager.device["modules"]} >= {"up", "down"}
    assert off.device["modules"] == eager.device["modules"]
    assert off.device["steps"] == eager.device["steps"]
