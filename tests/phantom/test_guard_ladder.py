"""`ullage fit --ladder` proves the rungs of a guard, and `ullage.guard` says what is proved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.recording.bare import bare_environment
from tests.phantom.alone import printed_by

from ullage.ground.protocol import variables
from ullage.players.phantom.device import choose_device

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs" / "guard"
MAIN = "from ullage.cli import main; main()"
GPU = ("--gpu", "rtx-4090", "--memory", "2GiB")
TIMEOUT_S = 1800


def fit(python: Path, path: Path, ladder: str, program: Path, *words: str) -> tuple[int, str]:
    """The exit code of `ullage fit --ladder`, and what it printed."""
    done = subprocess.run(
        [
            sys.executable, "-c", MAIN, "fit", *GPU, "--ladder", ladder, "--steps", "2", "-o",
            str(path), "--python", str(python), "--", str(program), *words,
        ],
        check=False, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=path.parent,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_guard_says_how_many_rungs_there_are_and_up_to_what_each_is_proved(
    thin_python: Path, tmp_path: Path
) -> None:
    answers = printed_by(thin_python, "guard/ladder_file.py", str(tmp_path))
    start = "ullage: guard: "
    rungs, first, second, third, recovery, end = answers["said"]
    assert rungs.startswith(f"{start}3 rungs: 0. the unchanged program; 1. checkpoint (2 modules)")
    proof = "on the phantom l4: 1.0 GiB reserved of 20.0 GiB, 250.00 ms a step"
    assert first == f"{start}rung 0 is proved up to length 512 {proof}"
    assert second == f"{start}rung 1 is proved up to length 1024 {proof}"
    assert third == f"{start}rung 2 is proved for no length"
    assert recovery.endswith("ran the step again on rung 1 (checkpoint (2 modules))")
    assert end == f"{start}recoveries: 1 in 1 steps"
    assert answers["rung"] == 1
    plan, foreign, missing = answers["refused"]
    assert 'it is one plan, not a ladder; pass it in a list: plans=["plan.json"]' in plan
    assert "a rung of a guard cannot have 'free_gradients'" in foreign
    assert "missing.json' cannot be read" in missing


@pytest.mark.phantom
def test_a_program_that_fits_has_one_rung_that_was_run(thin_python: Path, tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    code, text = fit(thin_python, path, "rows=512,1024", PROGRAMS / "rungs.py", "{rows}")
    assert code == 0, text
    assert "one rung for 2.00 GiB of rtx-4090" in text
    document = json.loads(path.read_text(encoding="utf-8"))
    (rung,) = document["rungs"]
    assert (document["schema"], rung["plan"], rung["proved_to"]) == (
        "ullage.find_ladder/1",
        None,
        1024,
    )
    small, large = rung["proofs"]
    assert (small["size"], large["size"]) == (512, 1024)
    assert 0 < small["reserved_bytes"] <= large["reserved_bytes"] < large["used_bytes"] < 2 << 30
    assert 0 < small["step_s"] < large["step_s"]


@pytest.mark.nightly
@pytest.mark.phantom
def test_the_rungs_are_in_the_order_of_time_and_a_guard_recovers_under_them(
    thin_python: Path, tmp_path: Path
) -> None:
    path = tmp_path / "ladder.json"
    code, text = fit(thin_python, path, "rows=8192,24576", PROGRAMS / "rungs.py", "{rows}")
    assert code == 0, text
    rungs = json.loads(path.read_text(encoding="utf-8"))["rungs"]
    assert [rung["proved_to"] for rung in rungs] == [8192, 24576]
    times = [rung["proofs"][0]["step_s"] for rung in rungs]
    assert times == sorted(times)
    assert not rungs[0]["proofs"][1]["fits"]
    device = choose_device("rtx-4090", memory="2GiB").environment_text()
    done = subprocess.run(
        [
            str(thin_python), str(PROGRAMS / "rungs.py"), "24576", "guarded", str(path),
            str(ROOT / "src"),
        ],
        check=False, capture_output=True, text=True, timeout=TIMEOUT_S,
        env={**bare_environment(thin_python), variables.DEVICE: device},
    )  # fmt: skip
    assert done.stdout.split() == ["1", "1"], done.stderr
    assert "rung 1 is proved up to rows 24576 on the phantom rtx-4090" in done.stderr


def test_what_does_not_go_with_a_ladder_is_refused(thin_python: Path, tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    program = PROGRAMS / "rungs.py"
    for ladder, words, expected in (
        ("rows", ("{rows}",), "write the variable and its sizes, from small to large"),
        ("rows=2,1", ("{rows}",), "sizes=[2, 1] are not possible"),
        ("rows=1,2", ("512",), "no word of the program has {rows}"),
    ):
        code, text = fit(thin_python, path, ladder, program, *words)
        assert code == 2
        assert expected in " ".join(text.split())
