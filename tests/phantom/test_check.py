"""`ullage check` and its --write with real runs: what is locked, kept, found, and survived."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.ground.units import MIB
from ullage.verbs.check.gate.lock import read_lock

pytestmark = pytest.mark.phantom

ROOT = Path(__file__).parents[2]
DDP = ROOT / "tests" / "programs" / "distributed" / "ddp.py"
MAIN = "from ullage.cli import main; main()"
TIMEOUT_S = 180

PROGRAM = """
import os
import sys

import torch

from model import Model

width = int(sys.argv[1]) if len(sys.argv) > 1 else 512
model = Model(width).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4096, width, device="cuda")).mean().backward()
    optimizer.step()
"""
MODEL = """
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(self.up(x).relu())
"""
CONFIG = """
[scenario.train]
command = "train.py"
gpu = "l4"
inputs = "data.bin"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small training project."""
    return make_project(tmp_path / "project")


def make_project(directory: Path) -> Path:
    directory.mkdir()
    (directory / "train.py").write_text(PROGRAM)
    (directory / "model.py").write_text(MODEL)
    (directory / "ullage.toml").write_text(CONFIG)
    return directory


@pytest.fixture(scope="module")
def locked_project(tmp_path_factory: pytest.TempPathFactory, thin_python: Path) -> Path:
    """The same, locked once for many tests, each of which takes a copy."""
    directory = make_project(tmp_path_factory.mktemp("locked") / "project")
    ullage.lock(config=directory / "ullage.toml", python=thin_python)
    return directory


@pytest.fixture
def locked(project: Path, locked_project: Path) -> Path:
    """A project with its lock; its cache is of another place and knows the locked run alone."""
    shutil.copy(locked_project / "ullage.lock", project)
    shutil.copytree(locked_project / ".ullage_cache", project / ".ullage_cache")
    return project


def ullage_in(
    directory: Path, python: Path, *words: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """`ullage WORDS` in a directory."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words, "--python", str(python)],
        cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "80", **env},
    )  # fmt: skip


def check(directory: Path, python: Path, **options: Any) -> ullage.Check:
    return ullage.check(config=directory / "ullage.toml", python=python, **options)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.slow
def test_a_lock_says_what_a_run_says(locked_project: Path, thin_python: Path) -> None:
    entry = read_lock(locked_project / "ullage.lock").scenarios["train"]
    env = dict(os.environ)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "run", "--json", "--gpu", "l4", "--python", str(thin_python),
         "--snapshot", "run.pickle", "--", "train.py"],
        cwd=locked_project, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, env=env,
    )  # fmt: skip
    (device,) = json.loads(done.stdout)["devices"]
    for name, size in entry.peaks._asdict().items():
        assert device[f"peak_{name}"] == size
    assert {k: v for k, v in device["at_peak"].items() if v} == dict(entry.categories)
    assert sum(entry.categories.values()) == entry.peaks.allocated_bytes
    assert {one["path"]: one["bytes"] for one in device["modules"] if one["path"]}.items() <= (
        entry.modules.items()
    )
    assert entry.growth_bytes == 0
    assert entry.key.command == "train.py"
    assert "model.py in forward" in entry.places


def test_a_lock_has_nothing_of_the_machine_and_is_the_same_elsewhere(
    locked_project: Path, project: Path, thin_python: Path
) -> None:
    other = project.rename(project.with_name("another-name"))
    done = ullage_in(other, thin_python, "check", "--write")
    assert done.returncode == 0, done.stderr
    text = (other / "ullage.lock").read_text()
    assert text == (locked_project / "ullage.lock").read_text()
    assert str(other.parent) not in text


@pytest.mark.slow
def test_from_nothing_to_a_gate_that_fails(locked: Path, thin_python: Path) -> None:
    fine = ullage_in(locked, thin_python, "check")
    assert fine.returncode == 0, fine.stderr
    assert fine.stdout.startswith("passed: 1 scenario\n")
    edit(locked / "model.py", "self.up(x).relu()", "(self.up(x).relu() * self.up(x).sigmoid())")
    summary = locked / "summary.md"
    found = ullage_in(
        locked, thin_python, "check", "--pages", "pages", "-o", "check.json", GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(summary), GITHUB_WORKSPACE=str(locked), GITHUB_RUN_ID="",
    )  # fmt: skip
    assert found.returncode == 1, found.stderr
    # What programs print is no command of GitHub's.
    stop, report = found.stdout.split("\n", 1)
    assert stop.startswith("::stop-commands::") and report.startswith("exceeded: 1 of 1 scenario\n")
    assert "::error file=model.py,line=12,title=ullage check%3A train%3A exceeded::" in found.stdout
    (device,) = json.loads((locked / "check.json").read_text())["scenarios"][0]["devices"]
    assert device["by_category"][0]["name"] == "activation"
    assert device["by_module"][0]["name"] in {"", "up"}
    assert device["by_place"][0]["where"] == "model.py:12 in forward"
    assert device["reasons"], "the locked run is at hand, and says why"
    assert "train ([page](pages/train.html))" in summary.read_text()
    assert "<html" in (locked / "pages" / "train.html").read_text()
    accepted = ullage_in(locked, thin_python, "check", "--write", "train")
    assert accepted.returncode == 0
    assert ullage_in(locked, thin_python, "check").returncode == 0


def test_without_the_locked_run_the_lock_alone_says_what_grew(
    locked: Path, thin_python: Path
) -> None:
    shutil.rmtree(locked / ".ullage_cache")
    edit(locked / "model.py", "self.up(x).relu()", "(self.up(x).relu() * self.up(x).sigmoid())")
    found = check(locked, thin_python, no_cache=True)
    assert found.exit_code == 1 and not found.diffs
    (judged,) = found.judged
    (comparison,) = judged.comparisons
    assert comparison.changes.categories[0].name == "activation"
    assert "model.py:12 in forward" in found.view.reasons(judged, comparison)[0]
    assert not (locked / ".ullage_cache").exists(), "nothing is kept without a cache"


def test_what_takes_less_passes_and_is_offered(locked: Path, thin_python: Path) -> None:
    edit(locked / "train.py", "4096", "1024")
    found = check(locked, thin_python)
    assert found.exit_code == 0
    assert "ullage check --write train" in found.text()
    before = (locked / "ullage.lock").read_text()
    assert ullage.lock(config=locked / "ullage.toml", python=thin_python).report.left == ("train",)
    assert (locked / "ullage.lock").read_text() == before, "what is locked stays"


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("raise ValueError('no data')", 3, "ValueError: no data"),
        ("import torch\nraise SystemExit(4)", 3, "failed"),
        ("import torch\nprint('done')", 3, "used no device memory"),
        ("import os, torch\ntorch.ones(9, device='cuda')\nos.kill(os.getpid(), 9)", 3, "failed"),
        ("import torch\ntorch.empty(1 << 40, device='cuda')", 1, "does not fit on l4"),
    ],
)
def test_a_program_that_does_not_go_through_never_passes(
    program: str, code: int, words: str, locked: Path, thin_python: Path
) -> None:
    (locked / "train.py").write_text(program)
    known = set((locked / ".ullage_cache").iterdir())
    found = check(locked, thin_python)
    assert found.exit_code == code, found.text()
    assert words in found.text()
    assert set((locked / ".ullage_cache").iterdir()) == known, "what failed is not kept"


@pytest.mark.parametrize(
    ("program", "code"),
    [("raise ValueError", 3), ("import torch\ntorch.empty(1 << 40, device='cuda')", 1)],
)
def test_what_does_not_go_through_is_not_locked(
    program: str, code: int, locked: Path, thin_python: Path
) -> None:
    before = (locked / "ullage.lock").read_text()
    (locked / "train.py").write_text(program)
    assert ullage_in(locked, thin_python, "check", "--write", "train").returncode == code
    assert (locked / "ullage.lock").read_text() == before


def test_a_crash_beside_a_broken_budget_is_a_crash(project: Path, thin_python: Path) -> None:
    (project / "crash.py").write_text("import torch\nraise ValueError\n")
    (project / "ullage.toml").write_text(
        '[scenario.a]\ncommand = "train.py"\ngpu = "l4"\nbudget = { max_allocated = "1MiB" }\n'
        '[scenario.b]\ncommand = "crash.py"\n'
    )
    found = check(project, thin_python)
    assert [one.state.value for one in found.judged] == ["exceeded", "failed"]
    assert found.exit_code == 3


@pytest.mark.slow
def test_a_matrix_and_budgets_without_a_lock(project: Path, thin_python: Path) -> None:
    (project / "ullage.toml").write_text(
        '[scenario.train]\ncommand = "train.py {width}"\nenv = { SIZE = "{width}" }\n'
        'matrix = { width = [256, 1024], gpu = ["l4", "t4"] }\n'
        'budget = { max_allocated = "128MiB", headroom = "5%", growth_per_step = "0B" }\n'
    )
    found = check(project, thin_python)
    states = {one.name: one.state.value for one in found.judged}
    assert states == {
        "train/width=256,gpu=l4": "not locked", "train/width=256,gpu=t4": "not locked",
        "train/width=1024,gpu=l4": "exceeded", "train/width=1024,gpu=t4": "exceeded",
    }  # fmt: skip
    assert found.exit_code == 1
    assert (
        "\n    ullage check --write train/width=256,gpu=l4 train/width=256,gpu=t4\n" in found.text()
    )
    assert "--write train " not in found.text(), "a lock does not raise a budget"
    one = check(project, thin_python, scenarios=["train/width=256,gpu=l4"])
    (alone,), together = one.judged, found.judged[0]
    assert alone.comparisons[0].entry == together.comparisons[0].entry, "forked or fresh"


LATER_LARGER = """
import sys

import torch

MIB = 1 << 20
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
kept = []


def take(num_bytes):
    return torch.empty(int(num_bytes), dtype=torch.uint8, device="cuda")


held, other = take(12 * MIB), take(30 * MIB)
for step in range(6):
    model(torch.ones(8, 8, device="cuda")).sum().backward()
    held = other = None
    # As many bytes in each step: of the larger segment at first, a whole one of 12 MiB later.
    other = take(12 * MIB) if step < 3 else None
    held = take(11.5 * MIB)
    other = None
    kept += [take(MIB)] if "leak" in sys.argv else []
    optimizer.step()
"""


@pytest.mark.parametrize(("words", "code"), [("", 0), ("leak", 1)])
def test_growth_is_of_what_was_asked_for(
    words: str, code: int, project: Path, thin_python: Path
) -> None:
    (project / "train.py").write_text(LATER_LARGER)
    (project / "ullage.toml").write_text(
        f'[scenario.train]\ncommand = "train.py {words}"\nbudget = {{ growth_per_step = "0B" }}\n'
    )
    found = check(project, thin_python)
    assert found.exit_code == code, found.text()
    (comparison,) = found.judged[0].comparisons
    assert comparison.entry.growth_bytes == (MIB if words else 0)


@pytest.mark.slow
def test_ranks_have_entries_of_their_own(project: Path, thin_python: Path) -> None:
    shutil.copy(DDP, project)
    (project / "ullage.toml").write_text(
        '[scenario.ddp]\ncommand = "ddp.py --zero"\ngpu = "l4"\nworld_size = 2\nranks = [0, 1]\n'
    )
    locked = ullage.lock(config=project / "ullage.toml", python=thin_python)
    assert locked.report.written == ("ddp/rank=0", "ddp/rank=1")
    entries = read_lock(project / "ullage.lock").scenarios
    assert entries["ddp/rank=1"].key.ranks == "rank 1 of 2"
    again = check(project, thin_python)
    assert again.exit_code == 0
    assert [one.is_kept for one in again.judged] == [True]


CHANGES: dict[str, Callable[[Path], object]] = {
    "the program": lambda project: edit(project / "train.py", "range(3)", "range(4)"),
    "a module": lambda project: edit(project / "model.py", "relu", "sigmoid"),
    "the command": lambda project: edit(project / "ullage.toml", "train.py", "train.py 512"),
    "the environment": lambda project: edit(
        project / "ullage.toml", "inputs", 'env = { X = "1" }\ninputs'
    ),
    "the GPU": lambda project: edit(project / "ullage.toml", "l4", "a10g"),
    "the allocator": lambda project: edit(
        project / "ullage.toml", "inputs", 'alloc_conf = "expandable_segments:True"\ninputs'
    ),
    "a file that it names": lambda project: (project / "data.bin").write_text("x"),
    "a module in front": lambda project: (project / "numbers.py").write_text(""),
}


@pytest.fixture(scope="module")
def known_project(tmp_path_factory: pytest.TempPathFactory, thin_python: Path) -> Path:
    """A project whose result is known."""
    directory = make_project(tmp_path_factory.mktemp("known") / "project")
    assert not check(directory, thin_python).judged[0].is_kept
    return directory


@pytest.mark.slow
def test_what_is_known_is_not_run(known_project: Path, thin_python: Path) -> None:
    first = check(known_project, thin_python)
    assert first.judged[0].is_kept
    assert "1 of 1 not run" in first.text()
    assert not check(known_project, thin_python, no_cache=True).judged[0].is_kept
    (known_project / "README.md").write_text("nothing that is read\n")
    assert check(known_project, thin_python).judged[0].is_kept
    (known_project / "data.bin").unlink(missing_ok=True)


@pytest.mark.slow(only=("the environment",))
@pytest.mark.parametrize("name", CHANGES)
def test_what_it_depends_on_runs_it_again(
    name: str, known_project: Path, thin_python: Path
) -> None:
    before = {path: path.read_bytes() for path in known_project.iterdir() if path.is_file()}
    assert check(known_project, thin_python).judged[0].is_kept
    try:
        CHANGES[name](known_project)
        assert not check(known_project, thin_python).judged[0].is_kept
    finally:
        for path in known_project.iterdir():
            if path.is_file() and path not in before:
                path.unlink()
        for path, content in before.items():
            path.write_bytes(content)


@pytest.mark.slow
def test_a_variable_of_the_shell_runs_it_again(
    known_project: Path, thin_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(known_project, thin_python).judged[0].is_kept
    monkeypatch.setenv("GITHUB_RUN_ID", "4711")
    assert check(known_project, thin_python).judged[0].is_kept
    monkeypatch.setenv("MY_SIZE", "3")
    assert not check(known_project, thin_python).judged[0].is_kept


def start_check(directory: Path, python: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "check", "--python", str(python), *words],
        cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def children_of(pid: int) -> list[int]:
    """What any thread of a process has started: a scenario is not run by the first."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(word) for text in texts for word in text.split()]


def program_of(running: subprocess.Popen[str]) -> int:
    """The process of train.py, once there is one; what only asks for a version is not it."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        for child in children_of(running.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"train.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        time.sleep(0.05)
    running.kill()
    raise AssertionError(f"the check started no program: {running.communicate()}")


@pytest.mark.slow
@pytest.mark.fresh  # it looks for the program among the check's own children
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]
)
def test_a_check_that_is_stopped_leaves_lock_and_cache_whole(
    number: signal.Signals, code: int, locked: Path, thin_python: Path
) -> None:
    (locked / "train.py").write_text(PROGRAM + "\nimport time\ntime.sleep(60)\n")
    before = (locked / "ullage.lock").read_text()
    running = start_check(locked, thin_python)
    child = program_of(running)
    time.sleep(1)
    running.send_signal(number)
    running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == code
    deadline = time.monotonic() + TIMEOUT_S
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists(), "the program ended with it"
    assert (locked / "ullage.lock").read_text() == before
    (locked / "train.py").write_text(PROGRAM)
    assert check(locked, thin_python).exit_code == 0


@pytest.mark.slow
def test_two_checks_at_once(locked: Path, thin_python: Path) -> None:
    running = [start_check(locked, thin_python, "--json") for _ in range(2)]
    documents = [json.loads(one.communicate(timeout=TIMEOUT_S)[0]) for one in running]
    assert [one["exit_code"] for one in documents] == [0, 0]
    first, second = (one["scenarios"][0]["devices"] for one in documents)
    assert first == second
    assert check(locked, thin_python).judged[0].is_kept


@pytest.mark.slow
def test_two_locks_at_once_write_both(project: Path, thin_python: Path) -> None:
    (project / "ullage.toml").write_text(
        '[scenario.a]\ncommand = "train.py 256"\n[scenario.b]\ncommand = "train.py 320"\n'
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", MAIN, "check", "--write", name, "--python", str(thin_python)],
            cwd=project, stdout=subprocess.DEVNULL,
        )
        for name in "ab"
    ]  # fmt: skip
    assert [one.wait(TIMEOUT_S) for one in running] == [0, 0]
    assert set(read_lock(project / "ullage.lock").scenarios) == {"a", "b"}


def test_what_is_no_scenario_any_more_leaves_the_lock(locked: Path, thin_python: Path) -> None:
    edit(locked / "ullage.toml", "scenario.train", "scenario.other")
    done = ullage.lock(config=locked / "ullage.toml", python=thin_python).report
    assert (done.written, done.removed) == (("other",), ("train",))
