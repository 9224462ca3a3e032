"""The directory of a machine, and the programs that are started with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ullage.ground.errors import SpecError
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.nvml.machine import Machine, find_machine, machine_of, open_machine

L4 = choose_device("l4").environment_text()
ULLAGE = [sys.executable, "-c", "from ullage.cli import main; main()"]
ASK = (
    "import pynvml; pynvml.nvmlInit(); card = pynvml.nvmlDeviceGetHandleByIndex(1); "
    "print(pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(card))"
)


def ullage(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ULLAGE, *arguments], cwd=directory, capture_output=True, text=True, check=False
    )


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    machine = machine_of(L4, "cudart=12040", 4, None)
    open_machine(tmp_path / "node", machine)
    assert find_machine(tmp_path / "node") == machine
    assert Machine.parse("anything else") is None


def test_what_is_the_runs_own_is_not_the_machines() -> None:
    limited = choose_device("l4", budget="10GiB").environment_text()
    assert machine_of(limited, "", 1, None) == machine_of(L4, "", 1, None)


@pytest.mark.parametrize(
    ("num_devices", "visible", "expected"),
    [(2, None, 2), (2, "", 2), (8, "4,5", 8), (2, "6,7", 8), (1, "GPU-1, 3", 4), (1, "99", 1)],
)
def test_a_machine_has_the_devices_that_are_visible(
    num_devices: int, visible: str | None, expected: int
) -> None:
    assert machine_of(L4, "", num_devices, visible).num_devices == expected


def test_runs_join_a_machine(tmp_path: Path) -> None:
    for num_devices, expected in ((2, 2), (8, 8), (1, 8)):
        open_machine(tmp_path, machine_of(L4, "", num_devices, None))
        assert find_machine(tmp_path).num_devices == expected


def test_runs_that_begin_at_once_make_one_machine(tmp_path: Path) -> None:
    def begin(number: int) -> None:
        open_machine(tmp_path / "node", machine_of(L4, "", number, None))

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(begin, number) for number in range(1, 9)]:
            done.result()
    assert find_machine(tmp_path / "node").num_devices == 8
    assert {path.name for path in (tmp_path / "node").iterdir()} == {"machine", "libnvidia-ml.so.1"}


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    open_machine(tmp_path / "node", machine_of(L4, "", 1, None))
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "node").iterdir())


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    open_machine(tmp_path, machine_of(L4, "", 1, None))
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        (tmp_path / f"{pid}.use").touch()
    open_machine(tmp_path, machine_of(L4, "", 1, None))
    assert [path.name for path in tmp_path.glob("*.use")] == [f"{os.getpid()}.use"]


def test_it_is_refused_where_it_cannot_be(tmp_path: Path) -> None:
    machine = machine_of(L4, "", 1, None)
    other = machine_of(choose_device("t4").environment_text(), "", 1, None)
    node, file, foreign = tmp_path / "node", tmp_path / "file", tmp_path / "foreign"
    open_machine(node, machine)
    file.touch()
    foreign.mkdir(mode=0o700)
    (foreign / "thesis.tex").touch()
    with pytest.raises(SpecError, match=r"describes another GPU.*NVIDIA L4.*Tesla T4.*another"):
        open_machine(node, other)
    with pytest.raises(SpecError, match=r"file.* cannot be used: File exists"):
        open_machine(file, machine)
    with pytest.raises(SpecError, match="holds other files"):
        open_machine(foreign, machine)
    node.chmod(0o755)
    with pytest.raises(SpecError, match=r"open to other users.*chmod 700"):
        open_machine(node, machine)
    with pytest.raises(SpecError, match="there is no NVML directory"):
        find_machine(tmp_path / "none")
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]


def test_a_program_is_started_that_sees_the_gpus(tmp_path: Path) -> None:
    shown = ullage("nvml", "node", "--gpu", "l4", "--gpus", "2", "--", sys.executable, "-c", ASK,
                   directory=tmp_path)  # fmt: skip
    assert shown.stdout == "2 NVIDIA L4\n", shown.stderr
    ended = ullage("nvml", "node", "--", "sh", "-c", "exit 7", directory=tmp_path)
    assert ended.returncode == 7


def test_a_shell_gets_the_variable(tmp_path: Path) -> None:
    shown = ullage("nvml", "my node", "--gpu", "l4", directory=tmp_path)
    command = f'{shown.stdout}\necho "$LD_LIBRARY_PATH"'
    for before, after in (("", ""), ("/opt/lib", ":/opt/lib")):
        echoed = subprocess.run(
            ["sh", "-c", command],
            env={**os.environ, "LD_LIBRARY_PATH": before},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert echoed == f"{tmp_path / 'my node'}{after}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nvml", "node"), "there is no NVML directory 'node'; `ullage run --nvml DIR` makes one"),
        (
            ("nvml", "node", "--gpus", "2"),
            "--gpus is of a GPU that is described; name it with --gpu",
        ),
        (("nvml", "node", "--gpu", "l4", "--gpus", "0"), "no machine has 0 GPUs; expected 1 to 64"),
        (("nvml", "node", "--gpu", "l4", "--", "no-such-program"), "cannot be started: No such"),
        (("run", "--nvml", "node", "--sweep", "a=1,2", "--", "x.py"), "--nvml is for one run"),
    ],
)
def test_wrong_use_is_told(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    shown = ullage(*arguments, directory=tmp_path)
    assert shown.returncode == 2
    assert re.search(message, shown.stderr), shown.stderr
