"""`ullage exec --guard` and `ullage run --guard`: a program that ends out of memory is started
again under the next rung, from its own checkpoint, and trains the same.

The programs know nothing of it. On the processor they have the memory of a little GPU
(tests/programs/guard/little_memory).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import SOURCE, command, run_alone, run_ranks
from tests.phantom.bare_gpu import bare_environment
from tests.phantom.conftest import RunProgram, environment, find_program

from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action

PROGRAM = "guard/resumes.py"
LITTLE = str(Path(find_program(PROGRAM)).parent / "little_memory")
# The third step takes more than the first as it is, and less under rung 1; more than the second
# under rung 1, and less under rung 2.
RUNG_0, RUNG_1, MUCH = "200000", "150000", "9999999"
PARAMETERS = 4 * (16 * 64 + 64 + 64 * 16 + 16)
WAIT_S = 300
RESUME = ("--resume", "--resume")


def little(memory: str = RUNG_0) -> dict[str, str]:
    """The variables of a process on the processor with little memory."""
    return dict(environment({"LITTLE_MEMORY": memory}))


@pytest.fixture
def start_exec(thin_python: Path) -> Iterator[Any]:
    """Starts `ullage exec VERB -- resumes.py WORDS`; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, verb: tuple[str, ...], memory: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(thin_python, words, ("exec", *verb)), stderr=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE,
            env={**little(memory), "PYTHONPATH": f"{SOURCE}:{LITTLE}"},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def execute(start_exec: Any) -> Any:
    """Runs it to its end: the exit code, the document that it printed, and the lines of stderr."""

    def run(*words: str, verb: tuple[str, ...], memory: str = RUNG_0) -> tuple[int, Any, list[str]]:
        process = start_exec(*words, verb=verb, memory=memory)
        stdout, stderr = process.communicate(timeout=10 * WAIT_S)
        lines = [line for line in stdout.splitlines() if line.startswith('{"digest"')]
        return process.returncode, json.loads(lines[-1]) if lines else stderr, stderr.splitlines()

    return run


@pytest.fixture
def plan(thin_python: Path, tmp_path: Path) -> Any:
    """Writes a plan with checkpoints on the first so many blocks of the program's model."""

    def write(num_blocks: int, model: str = "Network", prefix: str = "") -> str:
        torch = run_alone(thin_python, "plans/on_processor.py", "imports").stdout.strip()
        blocks = {f"{prefix}blocks.{number}": "Block" for number in range(num_blocks)}
        path = tmp_path / f"{num_blocks}.json"
        made_for = MadeFor(torch, model, PARAMETERS, blocks, "AdamW")
        Plan((Action("checkpoint", tuple(blocks)),), made_for).save(path)
        return str(path)

    return write


def guard_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("ullage: guard: ")]


def forget_after(directory: Path, step: int) -> None:
    """Removes the checkpoints of later steps."""
    for path in directory.iterdir():
        numbers = re.findall(r"\d+", path.name)
        if numbers and int(numbers[-1]) > step:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def check_same(
    execute: Any, tmp_path: Path, verb: tuple[str, ...], plan: str, *words: str
) -> list[str]:
    """A program that is started again ends with the weights of one that was started under the plan
    of rung 1 from the checkpoint of its second step. Returns what the guard said.
    """
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    code, guarded, lines = execute(*words, str(directory), verb=(*RESUME, *verb))
    assert code == 0, lines
    assert guarded["steps"] == [2, 3, 4], "the steps before were done by the first start"
    forget_after(directory, 2)
    words = (*words, str(directory), "--resume")
    code, expected, lines_of_plan = execute(*words, verb=("--plan", plan))
    assert code == 0, lines_of_plan
    assert expected == guarded
    return guard_lines(lines)


@pytest.mark.slow
def test_a_loop_ends_with_the_weights_of_a_start_on_rung_1(
    execute: Any, plan: Any, tmp_path: Path
) -> None:
    path = plan(2)
    said = check_same(execute, tmp_path, ("--guard", f"{path},{plan(4)}"), path, PROGRAM, "plain")
    (line,) = said
    assert line == (
        "ullage: guard: the program ran out of memory (0.01 MiB asked for) on rung 0 (the "
        "unchanged program): started again on rung 1 (checkpoint (2 modules)) with --resume"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "model", "prefix"),
    [("transformers", "Network", ""), ("lightning", "Module", "model.")],
)
def test_a_trainer_ends_with_the_weights_of_a_start_on_rung_1(
    execute: Any, plan: Any, tmp_path: Path, kind: str, model: str, prefix: str
) -> None:
    path = plan(2, model, prefix)
    assert len(check_same(execute, tmp_path, ("--guard", path), path, PROGRAM, kind)) == 1


@pytest.mark.slow
def test_ranks_of_torchrun_end_with_the_weights_of_a_start_on_rung_1(
    execute: Any, plan: Any, tmp_path: Path
) -> None:
    torchrun = ("torchrun", "--nproc-per-node", "2", "--master-port", free_port())
    words, path = (*torchrun, find_program(PROGRAM), "ddp"), plan(2)
    (line,) = check_same(execute, tmp_path, ("--guard", path), path, *words)
    assert line.startswith("ullage: guard: rank 1 ran out of memory")


@pytest.mark.slow
def test_a_supervisor_for_each_rank_starts_all_ranks_again(
    thin_python: Path, plan: Any, tmp_path: Path
) -> None:
    path = plan(2)
    ends: list[tuple[str, list[str]]] = []
    env = {"LITTLE_MEMORY": RUNG_0, "PYTHONPATH": f"{SOURCE}:{LITTLE}", "TMPDIR": str(tmp_path)}
    for verb in ((*RESUME, "--guard", path), ("--plan", path)):
        directory = tmp_path / "checkpoints"
        directory.mkdir(exist_ok=True)
        words = (PROGRAM, "ddp", str(directory), *(["--resume"] if ends else []))
        ranks = run_ranks(thin_python, *words, verb=("exec", *verb), env=env)
        assert [rank.returncode for rank in ranks] == [0, 0], [rank.stderr for rank in ranks]
        ends.append((ranks[0].stdout, guard_lines("".join(r.stderr for r in ranks).splitlines())))
        forget_after(directory, 2)
    (guarded, said), (expected, _) = ends
    assert guarded == expected
    assert len(said) == 1 and "rank 1 ran out of memory" in said[0]
    assert not [*tmp_path.glob("ullage-*")], "what the supervisors had in common is gone"


@pytest.mark.slow
def test_it_goes_down_rung_by_rung_and_ends_where_there_is_none(
    execute: Any, tmp_path: Path
) -> None:
    words = (PROGRAM, "plain", str(tmp_path))
    code, document, lines = execute(*words, verb=("--guard", *RESUME), memory=RUNG_1)
    assert code == 0 and document["steps"] == [2, 3, 4]
    first, second = guard_lines(lines)
    assert "on rung 0 (the unchanged program): started again on rung 1 (checkpoint (2" in first
    assert "on rung 1 (checkpoint (2 modules)): started again on rung 2 (checkpoint (4" in second
    code, _, lines = execute(*words, verb=("--guard",), memory="1000")
    *others, last = guard_lines(lines)
    assert code == 1 and len(others) == 2
    assert others[0].endswith("on rung 1 (checkpoint (2 modules)) from its beginning")
    assert last.endswith("on rung 2 (checkpoint (4 modules)); no rung is left")


def test_a_program_that_fails_for_another_reason_is_not_started_again(
    execute: Any, tmp_path: Path
) -> None:
    verb = ("--guard", *RESUME)
    code, text, lines = execute(PROGRAM, "plain", str(tmp_path), "--fail", verb=verb, memory=MUCH)
    assert code == 1 and guard_lines(lines) == []
    assert "ValueError: the program's own" in text


def numbers_in(directory: Path, pattern: str, count: int) -> list[int]:
    """The numbers of so many processes, once they are in their files."""
    limit_s = time.monotonic() + WAIT_S
    while len(paths := sorted(directory.glob(pattern))) < count:
        assert time.monotonic() < limit_s, "the program does not wait"
        time.sleep(0.05)
    return [int(path.read_text()) for path in paths]


def check_gone(numbers: list[int]) -> None:
    """These processes end."""
    limit_s = time.monotonic() + WAIT_S
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < limit_s and not is_ending(number):
                os.kill(number, 0)
                time.sleep(0.05)
            assert is_ending(number), f"process {number} is left running"


def is_ending(number: int) -> bool:
    """Whether a process has ended, and its parent has not been told."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_sigterm_reaches_the_program_which_is_not_started_again(
    start_exec: Any, tmp_path: Path
) -> None:
    words = (PROGRAM, "plain", str(tmp_path), "--wait")
    process = start_exec(*words, verb=("--guard",), memory=MUCH)
    numbers = numbers_in(tmp_path, "waits-*.pid", 1)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == 7 and (tmp_path / "asked").exists()
    assert guard_lines(stderr.splitlines()) == []
    check_gone(numbers)


@pytest.mark.slow
def test_what_a_start_leaves_running_is_ended(execute: Any, tmp_path: Path) -> None:
    words = (PROGRAM, "plain", str(tmp_path), "--helper")
    code, _, lines = execute(*words, verb=("--guard", *RESUME))
    assert code == 0, lines
    check_gone(numbers_in(tmp_path, "helper-*.pid", 2))


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_nothing_is_left_of_a_supervisor_that_is_killed(
    start_exec: Any, tmp_path: Path, num_ranks: int
) -> None:
    torchrun = ("torchrun", "--nproc-per-node", "2", "--master-port", free_port())
    alone = num_ranks == 1
    words = (PROGRAM, "plain") if alone else (*torchrun, find_program(PROGRAM), "ddp")
    verb, memory = ("--guard",), MUCH
    process = start_exec(*words, str(tmp_path), "--wait", verb=verb, memory=memory)
    numbers = numbers_in(tmp_path, "waits-*.pid", num_ranks)
    process.kill()
    check_gone(numbers)


@pytest.mark.slow
def test_an_error_of_a_gpus_allocator_is_known(thin_python: Path, tmp_path: Path) -> None:
    done = run_alone(
        thin_python, PROGRAM, "plain", str(tmp_path),
        verb=("exec", "--cap", "4GiB", "--guard", *RESUME), env=bare_environment(thin_python),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = guard_lines(done.stderr.splitlines())
    assert re.search(r"ran out of memory \([\d.]+ MiB asked for, .* free\) on rung 0", line)


@pytest.mark.phantom
def test_on_the_phantom_it_is_run_again_and_the_last_run_is_reported(
    run_program: RunProgram, tmp_path: Path
) -> None:
    options = ("--memory", "4GiB", "--guard", *RESUME)
    outcome = run_program(PROGRAM, "plain", str(tmp_path), options=options)
    assert (outcome.exit_code, outcome.printed["steps"]) == (0, [2, 3, 4]), outcome.stderr
    (line,) = guard_lines(outcome.stderr.splitlines())
    assert "ran out of memory (no room for " in line
    assert outcome.document["plan"]["summary"] == "checkpoint (2 modules)"
