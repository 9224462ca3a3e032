"""The plugin around tests that are measured where they run: on a torch that only counts."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = "pytester"

FAKE_TORCH = Path(__file__).with_name("fake_torch.py")

# An installed ullage is loaded without being named.
IS_INSTALLED = any(one.name == "ullage" for one in entry_points(group="pytest11"))
PLUGIN = () if IS_INSTALLED else ("-p", "ullage.pytest_plugin")
OPTIONS = (*PLUGIN, "-p", "no:cacheprovider", "--strict-markers")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project whose tests are measured in the process of pytest."""
    monkeypatch.setenv("ULLAGE_PHANTOM", "1")
    pytester.path.joinpath("torch.py").write_text(FAKE_TORCH.read_text("utf-8"), "utf-8")
    pytester.path.joinpath("conftest.py").write_text("", "utf-8")
    return pytester


def run(project: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    """What pytest says of a file of tests."""
    project.makepyfile(f"import pytest, torch, unittest\nMIB = 1 << 20\n{tests}")
    return project.runpytest_subprocess(*OPTIONS, *options)


def test_a_peak_within_the_limit_passes(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.gpu_memory("2 MiB", reserved="2 MiB", growth="0 B/iter", leak="0 B")
def test_it(gpu_memory):
    for _ in gpu_memory.iterations(4):
        torch.take(2 * MIB)
        torch.give(2 * MIB)
""",
    )
    result.assert_outcomes(passed=1)


def test_a_peak_above_the_limit_fails_and_says_by_how_much(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.gpu_memory("2 MiB", reserved="4 MiB")
def test_it():
    torch.take(3 * MIB)
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("gpu_memory: peak 3.00 MiB, limit 2.00 MiB: 1.00 MiB too much")
    result.stdout.no_fnmatch_line("*reserved*")


def test_what_was_allocated_before_is_not_the_tests_own(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
torch.take(5 * MIB)
def test_before():
    torch.take(7 * MIB)
    torch.give(7 * MIB)
@pytest.mark.gpu_memory("2 MiB", reserved="2 MiB")
def test_it(gpu_memory):
    torch.take(2 * MIB)
    assert gpu_memory.peak == 2 * MIB == gpu_memory.reserved_peak
""",
    )
    result.assert_outcomes(passed=2)


def test_a_reset_by_the_test_hides_nothing(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.gpu_memory("2 MiB")
def test_it():
    torch.take(3 * MIB)
    torch.give(3 * MIB)
    torch.cuda.reset_peak_memory_stats()
def test_torch_is_as_it_was():
    assert torch._C._cuda_resetPeakMemoryStats is torch._reset
""",
    )
    result.assert_outcomes(failed=1, passed=1)


def test_phases_have_peaks_of_their_own(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.gpu_memory
def test_it(gpu_memory):
    with gpu_memory.phase("outer"):
        torch.take(4 * MIB)
        torch.give(4 * MIB)
        with gpu_memory.phase("inner"):
            torch.take(MIB)
            with pytest.raises(Exception, match="'inner' has begun and not ended"):
                with gpu_memory.phase("inner"):
                    pass
        torch.give(MIB)
    with gpu_memory.phase("later"):
        torch.take(2 * MIB)
    assert gpu_memory.phases == {"inner": MIB, "outer": 4 * MIB, "later": 2 * MIB}
    assert gpu_memory.peak == 4 * MIB
""",
    )
    result.assert_outcomes(passed=1)


def test_growth_is_that_of_the_later_iterations(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.gpu_memory(growth="0 B/iter")
def test_states_that_the_first_iterations_make(gpu_memory):
    for step in gpu_memory.iterations(6):
        torch.take(MIB if step < 3 else 0)
    assert gpu_memory.growth == 0
@pytest.mark.gpu_memory(growth="1 MiB/iter")
def test_allowed(gpu_memory):
    for step in gpu_memory.iterations(6):
        torch.take(MIB)
@pytest.mark.gpu_memory(growth="0 B/iter")
def test_every_third_iteration_keeps_something(gpu_memory):
    for step in gpu_memory.iterations(12):
        torch.take(0 if step % 3 else MIB)
@pytest.mark.gpu_memory(growth="0 B/iter")
def test_larger_blocks_for_as_many_bytes(gpu_memory):
    for step in gpu_memory.iterations(6):
        if step:
            torch.give(MIB, rounding=(step - 1) * 512)
        torch.take(MIB, rounding=step * 512)
@pytest.mark.gpu_memory(growth="0 B/iter")
def test_no_iterations(gpu_memory):
    pass
""",
    )
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines("gpu_memory: growth 341.33 KiB after each iteration*limit 0 B")
    result.stdout.fnmatch_lines("gpu_memory: its growth is limited, and no iterations are marked*")


def test_what_is_left_is_an_error_of_the_teardown(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.fixture
def buffer():
    torch.take(MIB)
    yield
    torch.give(MIB)
@pytest.mark.gpu_memory(leak="0 B")
def test_given_back_by_a_fixture(buffer):
    pass
@pytest.mark.gpu_memory(leak="1 MiB")
def test_left(buffer):
    torch.take(2 * MIB)
""",
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines("*ERROR at teardown of test_left*")
    result.stdout.fnmatch_lines("gpu_memory: 2.00 MiB still allocated after the test, limit 1.00*")


def test_a_limit_is_a_failure_like_any_other(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.gpu_memory("1 MiB")
@pytest.mark.xfail(strict=True)
def test_expected():
    torch.take(2 * MIB)
@pytest.mark.gpu_memory("1 MiB")
class TestOld(unittest.TestCase):
    def test_too_much(self):
        torch.take(2 * MIB)
    @unittest.skip("later")
    def test_skipped(self):
        pass
@pytest.mark.gpu_memory("1 MiB")
def test_fails_by_itself():
    torch.take(MIB)
    assert False, "its own reason"
""",
    )
    result.assert_outcomes(xfailed=1, failed=2, skipped=1)
    result.stdout.fnmatch_lines("*its own reason*")


def test_a_limit_on_a_test_that_uses_no_gpu_is_doubted(project: pytest.Pytester) -> None:
    result = run(project, '@pytest.mark.gpu_memory("1 MiB")\ndef test_it(): pass')
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines("*the test has allocated nothing on the GPU*")


def test_who_owns_it_is_not_known_without_the_phantom(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.gpu_memory
def test_it(gpu_memory):
    gpu_memory.by_module
""",
    )
    result.stdout.fnmatch_lines("*give pytest --gpu-memory-gpu h100-80gb*")


def test_the_table_and_the_properties_have_the_figures(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
@pytest.mark.gpu_memory("4 MiB", leak="0 B")
def test_it():
    torch.take(3 * MIB)
    torch.give(3 * MIB)
""",
        "--gpu-memory",
        "--junitxml=junit.xml",
    )
    result.stdout.fnmatch_lines(["*= GPU memory =*", "*3.00 MiB  3.00 MiB *0 B*4.00 MiB*::test_it"])
    found = project.path.joinpath("junit.xml").read_text("utf-8")
    properties = dict(re.findall(r'property name="gpu_memory_(\w+)" value="(\d+)"', found))
    assert properties == {"peak_bytes": "3145728", "reserved_bytes": "3145728", "left_bytes": "0"}


BAD = """
def test_fine():
    pass
@pytest.mark.gpu_memory("80G")
def test_bad():
    pass
"""


def test_a_bad_mark_is_an_error_of_the_collection_that_names_its_line(
    project: pytest.Pytester,
) -> None:
    result = run(project, BAD)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines("*.py:6: @pytest.mark.gpu_memory of test_bad: limit='80G': *")


def test_a_mark_may_be_added_by_conftest(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.path.joinpath("conftest.py").write_text(
        """
import os
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.gpu_memory(os.environ["LIMIT"]))
""",
        "utf-8",
    )
    tests = "def test_it(): torch.take(3 * MIB)"
    monkeypatch.setenv("LIMIT", "2 MiB")
    run(project, tests).assert_outcomes(failed=1)
    monkeypatch.setenv("LIMIT", "2M")
    result = run(project, tests)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*.py:3: @pytest.mark.gpu_memory of test_it: limit='2M': *")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpu-memory-gpu", "x1"), "*unknown GPU 'x1'*`ullage gpus` lists all"),
        (("-o", "gpu_memory_gpu=x1"), "*unknown GPU 'x1'*"),
        (("--gpu-memory-update", "--gpu-memory-fail-on-increase"), "*give one of them*"),
    ],
)
def test_a_bad_option_is_a_usage_error(
    project: pytest.Pytester, options: tuple[str, ...], said: str
) -> None:
    result = run(project, "def test_it(): pass", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(said)


def test_a_lock_that_cannot_be_read_is_a_usage_error(project: pytest.Pytester) -> None:
    project.path.joinpath("ullage.lock").write_text("version = 99\n", "utf-8")
    result = run(project, "def test_it(): pass", "--gpu-memory-fail-on-increase")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines("*newer ullage wrote it*")


def test_a_session_without_marks_loads_nothing_of_weight(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            loaded = {name.partition(".")[0] for name in sys.modules}
            assert not loaded & {"torch", "numpy", "rich", "click"}
            ours = {name for name in sys.modules if name.startswith("ullage.verbs.testing.")}
            assert ours == {"ullage.verbs.testing.limits", "ullage.verbs.testing.settings"}
        """
    )
    pytester.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=1)


def test_without_torch_a_marked_test_is_an_error_with_a_remedy(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ULLAGE_PHANTOM", raising=False)
    # A torch that is there, and no build for CUDA.
    package = pytester.mkpydir("torch")
    package.joinpath("version.py").write_text("__version__ = '2.9.0+cpu'\ncuda = None\n", "utf-8")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpu_memory
        def test_it():
            pass

        def test_other():
            pass
        """
    )
    result = pytester.runpytest_subprocess(*OPTIONS, "--gpu-memory-gpu", "t4")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines("*torch 2.9.0+cpu in * is a CPU-only build*")
    result.stdout.fnmatch_lines("*torch's CUDA build in the environment of pytest and ullage*")
