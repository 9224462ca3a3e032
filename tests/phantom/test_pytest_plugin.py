"""The pytest plugin on the phantom: marked tests in processes that are forked for them."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ullage.verbs.check.gate.lock import read_lock

pytestmark = pytest.mark.phantom

SOURCE = Path(__file__).parent.parent.parent / "src"
TIMEOUT_S = 900
PROGRAM_FAILED = 3  # exit code of `ullage run`

HEAD = """
import os, signal, time, unittest, warnings
import pytest

MIB = 1 << 20


def take(num_bytes):
    import torch

    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What one pytest left."""

    code: int
    text: str
    errors: str
    directory: Path

    @property
    def counts(self) -> dict[str, int]:
        """How many tests did what, by pytest's last line."""
        pairs = re.findall(r"(\d+) (passed|failed|skipped|xfailed|errors?)", self.text[-200:])
        return {kind.rstrip("s"): int(count) for count, kind in pairs}

    @property
    def lines(self) -> list[str]:
        """What it printed."""
        return self.text.splitlines()


RunTests = Callable[..., Result]


def execute(command: list[str], directory: Path, changes: dict[str, str]) -> Result:
    """Runs a command without what this process's environment would steer."""
    mine = ("ULLAGE_", "PYTORCH_", "PYTEST_", "LD_PRELOAD")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    done = subprocess.run(
        command, cwd=directory, env=kept | {"NO_COLOR": "1"} | changes, text=True, check=False,
        capture_output=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr, directory)


@pytest.fixture(scope="session")
def torch_python(thin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has torch, pytest and an installed ullage, made of those that do."""
    directory = tmp_path_factory.mktemp("environment")
    subprocess.run([thin_python, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    paths = [
        Path(subprocess.run([one, "-c", ask], check=True, capture_output=True, text=True)
             .stdout.strip())
        for one in (python, thin_python)
    ]  # fmt: skip
    packages = (SOURCE, paths[1], Path(sysconfig.get_path("purelib")))
    (paths[0] / "all.pth").write_text("".join(f"{path}\n" for path in packages), "utf-8")
    installed = paths[0] / "ullage-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: ullage\nVersion: 0\n", "utf-8"
    )
    (installed / "entry_points.txt").write_text(
        "[pytest11]\nullage = ullage.pytest_plugin\n", "utf-8"
    )
    return python


@pytest.fixture
def run_tests(torch_python: Path, tmp_path: Path) -> RunTests:
    """`run_tests(source, "--gpu-memory")`: pytest in a project that has this one file of tests."""

    def run(
        source: str, *options: str, conftest: str = "", env: tuple[tuple[str, str], ...] = ()
    ) -> Result:
        # Most of a small pytest is the import of torch: of files that say nothing of it, the
        # processes that tests are forked from alone have it.
        head = f"{HEAD}\nimport torch\n" if "torch" in source else HEAD
        (tmp_path / "test_it.py").write_text(head + source, "utf-8")
        (tmp_path / "conftest.py").write_text(conftest, "utf-8")
        (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
        command = [str(torch_python), "-m", "pytest", "-p", "no:cacheprovider", *options]
        return execute(command, tmp_path, dict(env))

    return run


MODEL = """
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(1024, 4096)
        self.down = torch.nn.Linear(4096, 1024)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


@pytest.fixture
def net():
    return Net().cuda()


@needs_gpu
@pytest.mark.gpu_memory("1 GiB", leak="0 B")
def test_fits(net, gpu_memory):
    with gpu_memory.phase("forward"):
        y = net(torch.randn(512, 1024, device="cuda"))
    with gpu_memory.phase("backward"):
        y.sum().backward()
    # Two float32 matrices of 4 Mi entries, and their gradients.
    assert gpu_memory.phases["backward"] > 64 * MIB
    assert gpu_memory.by_category["parameter"] >= 32 * MIB
    assert gpu_memory.by_category["gradient"] >= 16 * MIB
    assert set(gpu_memory.by_module) >= {"up", "down"}
    assert sum(gpu_memory.by_category.values()) == gpu_memory.peak


@pytest.mark.gpu_memory("32 MiB", growth="0 B/iter", leak="0 B", gpu="a10g")
def test_too_much(net, gpu_memory):
    assert torch.cuda.get_device_name() == "NVIDIA A10G"
    kept = []
    for _ in gpu_memory.iterations(6):
        kept.append(net(torch.randn(512, 1024, device="cuda")).detach())


@pytest.mark.gpu_memory(gpu="t4")
def test_out_of_memory(net):
    take(20 << 30)


def test_unmarked():
    assert not torch.cuda.is_available()
"""


@pytest.mark.slow
def test_a_model_is_measured_and_explained(run_tests: RunTests) -> None:
    result = run_tests(MODEL, "--gpu-memory")
    assert result.counts == {"passed": 2, "failed": 2}, result.text
    said = result.text
    peak = r"gpu_memory: peak (\S+ MiB), limit 32.00 MiB: \S+ MiB too much"
    assert re.search(peak, said)
    # 512 x 1024 of float32 are kept by each iteration.
    assert "gpu_memory: growth 2.00 MiB after each iteration" in said
    assert re.search(r"on a phantom a10g \(exact\):\n +32\.02 MiB  parameter", said)
    assert re.search(r"32\.02 MiB  \S*test_it.py:\d+ in net \(parameter, 4 blocks\)", said)
    assert re.search(r"OutOfMemoryError: .*Tried to allocate 20.00 GiB", said)
    assert re.search(r"-+ GPU memory -+\n  at the peak of 32.02 MiB, on a phantom t4", said)
    assert "ullage/players/inside" not in said  # tracebacks are the user's
    assert re.search(r"^ *\S+ MiB .* t4 +test_it.py::test_out_of_memory$", said, re.MULTILINE)


OUTCOMES = """
HELD = []


@pytest.mark.gpu_memory("1 MiB", leak="0 B")
def test_leaves_something():
    HELD.append(take(MIB))


@pytest.mark.gpu_memory("1 MiB", leak="0 B")
def test_starts_clean(gpu_memory):
    assert not HELD and gpu_memory.allocated == 0
    take(MIB)


@pytest.mark.gpu_memory
@pytest.mark.parametrize("size", [1, 2])
def test_parameters(size, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    print("captured")
    assert capsys.readouterr().out == "captured\\n"
    warnings.warn(f"watch out {size}")
    take(size)


@pytest.mark.gpu_memory
def test_prints_and_fails():
    print("printed by the test")
    assert 1 == 2


@pytest.mark.gpu_memory
def test_skips():
    pytest.skip("for a reason")


@pytest.mark.gpu_memory("1 MiB")
@pytest.mark.xfail(strict=True)
def test_expected_to_take_too_much():
    take(2 * MIB)


@pytest.mark.gpu_memory("1 MiB")
class TestOld(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.size = MIB

    def test_fits(self):
        take(self.size)

    def test_takes_too_much(self):
        take(2 * self.size)

    @unittest.skip("later")
    def test_later(self):
        pass


@pytest.fixture
def broken():
    yield
    raise ValueError("the teardown broke")


@pytest.mark.gpu_memory
def test_with_a_broken_fixture(broken):
    pass


@pytest.mark.gpu_memory
def test_ends_its_process():
    os._exit(3)


@pytest.mark.gpu_memory
def test_is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.gpu_memory
def test_computes_on_the_cpu():
    (torch.randn(700, 700) @ torch.randn(700, 700)).sum().item()


@pytest.mark.gpu_memory
def test_small_values_are_known():
    assert (torch.tensor([1, 2, 3]).cuda() * 2).sum().item() == 12


torch.randn(700, 700) @ torch.randn(700, 700)  # starts the threads of OpenMP


@pytest.mark.gpu_memory
def test_loads_in_workers():
    rows = torch.utils.data.TensorDataset(torch.arange(4.0))
    assert len([x.cuda() for (x,) in torch.utils.data.DataLoader(rows, num_workers=1)]) == 4


def test_last():
    pass
"""


@pytest.mark.slow
def test_outcomes_are_those_that_pytest_would_report(run_tests: RunTests) -> None:
    result = run_tests(OUTCOMES, "-rA", "--junitxml=junit.xml")
    assert result.code == pytest.ExitCode.TESTS_FAILED
    outcomes = {name: kind for kind, name in re.findall(
        r"^(PASSED|FAILED|XFAIL) test_it.py::(\S+)", result.text, re.MULTILINE)}  # fmt: skip
    assert outcomes == {
        "test_leaves_something": "PASSED",
        "test_starts_clean": "PASSED",
        "test_parameters[1]": "PASSED",
        "test_parameters[2]": "PASSED",
        "test_prints_and_fails": "FAILED",
        "test_expected_to_take_too_much": "XFAIL",
        "TestOld::test_fits": "PASSED",
        "TestOld::test_takes_too_much": "FAILED",
        "test_with_a_broken_fixture": "PASSED",
        "test_ends_its_process": "FAILED",
        "test_is_killed": "FAILED",
        "test_computes_on_the_cpu": "PASSED",
        "test_small_values_are_known": "PASSED",
        "test_loads_in_workers": "PASSED",
        "test_last": "PASSED",
    }
    assert result.counts["error"] == 2 and result.counts["skipped"] == 2
    said = result.text
    assert "ERROR at teardown of test_leaves_something" in said
    assert "gpu_memory: 1.00 MiB still allocated after the test" in said
    assert "ValueError: the teardown broke" in said
    assert "printed by the test" in said and "UserWarning: watch out 2" in said
    assert "ended with exit code 3 before the test did" in said
    assert "was ended by SIGKILL, as the kernel does where the machine runs out" in said
    assert "for a reason" in said
    cases = ElementTree.parse(result.directory / "junit.xml").findall(".//testcase")
    (case,) = (one for one in cases if one.get("name") == "test_starts_clean")
    properties = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert properties["gpu_memory_peak_bytes"] == str(1 << 20)


PLAIN = """
SIZE = int(os.environ.get("SIZE", "1"))


@pytest.mark.gpu_memory
@pytest.mark.parametrize("number", range(6))
def test_many(number):
    take(SIZE * (number + 1) * MIB)


@pytest.mark.gpu_memory
def test_nothing():
    pass


@pytest.mark.gpu_memory("1 B")
def test_fails():
    take(MIB)


def test_unmarked():
    pass
"""


@pytest.mark.slow
def test_the_lock_is_one_however_many_processes_run_the_tests(run_tests: RunTests) -> None:
    pytest.importorskip("xdist")
    result = run_tests(PLAIN, "--gpu-memory-update")
    assert result.counts == {"passed": 8, "failed": 1}, result.text
    path = result.directory / "ullage.lock"
    alone, tests = path.read_text("utf-8"), read_lock(path).tests
    assert f"Wrote {path} (6 tests)" in result.lines
    assert set(tests) == {f"test_it.py::test_many[{number}]" for number in range(6)}
    assert tests["test_it.py::test_many[2]"].peaks.allocated_bytes == 3 << 20
    path.unlink()
    result = run_tests(PLAIN, "--gpu-memory-update", "-n", "2")
    assert result.counts == {"passed": 8, "failed": 1}, result.text
    assert path.read_text("utf-8") == alone

    # One test is locked anew, and the others stay.
    run_tests(PLAIN, "--gpu-memory-update", "-k", "many and 1", env=(("SIZE", "3"),))
    changed = read_lock(path).tests
    assert changed["test_it.py::test_many[1]"].peaks.allocated_bytes == 6 << 20
    assert changed["test_it.py::test_many[0]"] == tests["test_it.py::test_many[0]"]

    path.write_text(alone, "utf-8")
    options = ("--gpu-memory-fail-on-increase", "-k", "many")
    assert run_tests(PLAIN, *options).counts == {"passed": 6}
    result = run_tests(PLAIN, *options, env=(("SIZE", "2"),))
    assert result.counts == {"failed": 6}, result.text
    assert "6.00 MiB, locked" in result.text and "+3.00 MiB  unattributed" in result.text
    assert path.read_text("utf-8") == alone


@pytest.mark.slow
def test_a_gpu_that_is_used_at_collection_costs_time_and_nothing_else(run_tests: RunTests) -> None:
    result = run_tests(
        """
EARLY = take(4 * MIB) if torch.cuda.is_available() else None


@pytest.mark.gpu_memory("2 MiB")
@pytest.mark.parametrize("size", [1, 2])
def test_it(size, gpu_memory):
    take(size * MIB)
    assert gpu_memory.peak == size * MIB
"""
    )
    assert result.counts == {"passed": 2}, result.text
    assert re.search(r"the GPU is used while tests are collected \(\S*test_it.py:\d+", result.text)


@pytest.mark.slow
def test_other_tests_with_a_gpu_than_without_are_not_passed_over(run_tests: RunTests) -> None:
    result = run_tests(
        """
@pytest.mark.gpu_memory
@pytest.mark.parametrize("device", ["cuda" if torch.cuda.is_available() else "cpu"])
def test_it(device):
    torch.zeros(1, device=device)
"""
    )
    assert result.counts == {"error": 1}, result.text
    assert "with a GPU, there is no test of this name" in result.text


@pytest.mark.slow
def test_fixtures_of_both_processes_are_set_up_and_ended(run_tests: RunTests) -> None:
    result = run_tests(
        """
LOG = os.environ["LOG"]


def note(text):
    with open(LOG, "a") as file:
        file.write(text + "\\n")


@pytest.fixture(scope="module")
def shared():
    note(f"up {'phantom' if torch.cuda.is_available() else 'here'}")
    yield
    note(f"down {'phantom' if torch.cuda.is_available() else 'here'}")


def test_first(shared):
    note("first")


@pytest.mark.gpu_memory
def test_marked(shared):
    note("marked")


def test_second(shared):
    note("second")


class TestLast:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def own(cls):
        yield
        note(f"class down {'phantom' if torch.cuda.is_available() else 'here'}")

    def test_third(self):
        note("third")

    @pytest.mark.gpu_memory
    def test_marked_too(self):
        note("marked too")


@pytest.mark.gpu_memory
def test_after_the_class():
    note("after")
""",
        env=(("LOG", "log.txt"),),
    )
    assert result.counts == {"passed": 6}, result.text
    assert (result.directory / "log.txt").read_text("utf-8").splitlines() == [
        "up here", "first",
        "up phantom", "marked", "down phantom",
        "second", "third",
        "marked too", "class down phantom", "class down here",
        "after", "down here",
    ]  # fmt: skip


@pytest.mark.slow
def test_what_ends_the_process_that_tests_are_forked_from_fails_one_test(
    run_tests: RunTests,
) -> None:
    result = run_tests(
        """
@pytest.mark.gpu_memory
def test_kills():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


@pytest.mark.gpu_memory("1 MiB")
def test_after():
    take(MIB)


@pytest.mark.gpu_memory
def test_stops_everything():
    pytest.exit("that is enough")


def test_never():
    pass
"""
    )
    assert result.counts == {"passed": 1, "failed": 1}, result.text
    assert "the process that tests are forked from ended (exit code -9)" in result.text
    assert "that is enough" in result.text


def test_what_takes_too_much_is_told_with_who_owns_it(run_tests: RunTests) -> None:
    result = run_tests(
        """
@pytest.mark.gpu_memory("1 MiB")
def test_it():
    kept = take(3 * MIB)
    assert kept.is_cuda
"""
    )
    assert result.counts == {"failed": 1}, result.text
    assert "peak 3.00 MiB, limit 1.00 MiB: 2.00 MiB too much" in result.text
    assert re.search(r"allocated at:\n +3\.00 MiB  \S+/test_it\.py:\d+ in take ", result.text)


@pytest.mark.slow
def test_one_of_the_two_processes_sums_up(run_tests: RunTests) -> None:
    result = run_tests(
        """
@pytest.mark.gpu_memory
def test_it(request):
    assert request.config.option.keyword == ""
    print("printed")
""",
        "-k", "test_it", "-s", "--junitxml=junit.xml",
        conftest="""
import os

def pytest_sessionstart(session):
    with open("sessions", "a") as file:
        file.write(f"start {session.config.option.xmlpath}\\n")

def pytest_sessionfinish(session):
    with open("sessions", "a") as file:
        file.write("finish\\n")
""",
    )  # fmt: skip
    assert result.counts == {"passed": 1}, result.text
    assert "printed" in result.text
    found = (result.directory / "sessions").read_text("utf-8").splitlines()
    assert found == ["start junit.xml", "start None", "finish"]


@pytest.mark.slow
def test_under_ullage_run_tests_are_measured_where_they_are(
    run_tests: RunTests, torch_python: Path
) -> None:
    source = """
EARLY = take(4 * MIB)


@pytest.mark.gpu_memory("2 MiB")
@pytest.mark.parametrize("size", [1, 2])
def test_it(size, gpu_memory):
    torch.cuda.reset_peak_memory_stats()
    kept = take(size * MIB)
    assert gpu_memory.peak == size * MIB


@pytest.mark.gpu_memory("1 MiB", reserved="20 MiB")
def test_too_much():
    take(3 * MIB)
"""
    directory = run_tests(source, "--collect-only").directory
    main = "from ullage.cli import main; main()"
    command = [str(torch_python), "-c", main, "run", "--gpu", "t4", "--", "-m", "pytest",
               "-p", "no:cacheprovider", "--gpu-memory"]  # fmt: skip
    result = execute(command, directory, {})
    assert result.code == PROGRAM_FAILED, result.text
    assert "1 failed, 2 passed" in result.text
    assert "gpu_memory: peak 3.00 MiB, limit 1.00 MiB: 2.00 MiB too much" in result.text


@pytest.mark.nightly
def test_a_thousand_tests(run_tests: RunTests) -> None:
    source = """
@pytest.mark.gpu_memory("3 MiB", leak="0 B")
@pytest.mark.parametrize("number", range(1000))
def test_it(number, gpu_memory):
    take((number % 3 + 1) * MIB)
    assert gpu_memory.peak == (number % 3 + 1) * MIB
"""
    result = run_tests(source, "--gpu-memory-update")
    assert result.counts == {"passed": 1000}, result.text
    tests = read_lock(result.directory / "ullage.lock").tests
    assert {entry.peaks.allocated_bytes for entry in tests.values()} == {1 << 20, 2 << 20, 3 << 20}
    assert len(tests) == 1000
