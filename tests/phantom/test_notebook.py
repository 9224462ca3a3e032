"""What a notebook keeps of its cells and of an exception: found under `ullage run` and under
`ullage record`, with what lets it go; and the cell that attaches may run again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.bare_gpu import bare_environment
from tests.phantom.conftest import MAIN, Outcome, RunProgram, execute, find_program

import ullage
from ullage import explain_file
from ullage.ground.units import MIB
from ullage.log.reader import read_record

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
SOURCE = str(Path(ullage.__file__).parents[1])
PROGRAM = "recording/cells.py"
TRACEBACK = "rows in train() (sys.last_traceback)"
FAILURE = "rows in train() (traceback of failure in __main__)"
HANDLED = "rows in train() (traceback of sys.exception())"


def names(rows: list[Any]) -> dict[int, list[str]]:
    """The chains of each size in MiB."""
    return {size: [chain for chain, _ in pairs] for size, *pairs in rows}


def check(outcome: Outcome) -> None:
    """The table of the session, the record and the finding."""
    tables = outcome.printed
    held_now = {512: ["large in __main__"], 96: [TRACEBACK], 32: ["Out[5]"], 24: [FAILURE],
                16: ["batch in __main__"]}  # fmt: skip
    assert names(tables["rows"]["at_end"]) == held_now
    assert names(tables["rows"]["in_hand"]) == held_now | {40: [HANDLED]}
    assert names(tables["rows"]["afterwards"]) == {512: ["large in __main__"]}
    header, *lines = tables["text"].splitlines()
    assert header.split() == ["bytes", "tensor", "held", "through", "let", "go"]
    assert lines[1].split()[:3] == ["96.0", "MiB", "uint8"] and lines[1].endswith("[2]")
    assert lines[6].startswith("[2] run a cell that fails at once")
    assert lines[-1].startswith("680.0 MiB of 684.0 MiB allocated have a name")
    chains = {holder.chain for holder in outcome.record.holders}
    assert {TRACEBACK, FAILURE, "Out[5]", "batch in __main__"} <= chains
    findings = explain_file(outcome.directory / "snapshot.pickle").findings
    kept = next(each for each in findings if each.rule.code == "UL117")
    assert kept.gain_bytes == (96 + 32 + 24) * MIB, "the peak is in the cell with 512 MiB"
    assert kept.evidence == (
        f"96.0 MiB in 1 block held by {TRACEBACK}",
        "32.0 MiB in 1 block held by Out[5]",
        f"24.0 MiB in 1 block held by {FAILURE}",
    )


@pytest.mark.slow
def test_what_the_session_keeps_is_found_in_a_run(run_program: RunProgram) -> None:
    check(run_program(PROGRAM, "held", "-", SOURCE))


@pytest.mark.slow
def test_what_the_session_keeps_is_found_in_a_record(thin_python: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-c", MAIN, "record", "--json", "--python", str(thin_python),
        "--snapshot", str(tmp_path / "snapshot.pickle"),
        "--", find_program(PROGRAM), "held", "-", SOURCE,
    ]  # fmt: skip
    variables = dict(bare_environment(thin_python, XDG_RUNTIME_DIR=str(tmp_path)))
    check(Outcome(*execute(command, tmp_path, variables), tmp_path))


def test_the_cell_that_attaches_runs_again_and_finally_detaches(
    thin_python: Path, tmp_path: Path
) -> None:
    command = [str(thin_python), find_program(PROGRAM), "attach", str(tmp_path), SOURCE]
    variables = dict(bare_environment(thin_python, XDG_RUNTIME_DIR=str(tmp_path)))
    code, stdout, stderr = execute(command, tmp_path, variables)
    assert code == 0, stderr
    document = json.loads(stdout.splitlines()[-1])
    assert document == {
        "is_same": True, "is_other": True, "attached": [False, False],
        "files": ["a.pickle", "b.pickle"], "file": "b.pickle", "again": None,
    }  # fmt: skip
    assert "this process is recorded already: that goes on" in stderr
    assert "the earlier recording has ended, in 'a.pickle'" in stderr
    # The first file goes on while the cell runs again; the second begins with what is there.
    for name, num_tensors in (("a", 4), ("b", 4 + 3)):
        sizes = read_record(tmp_path / f"{name}.pickle").events.size_bytes
        assert (sizes == 4 << 20).sum() == num_tensors, name
