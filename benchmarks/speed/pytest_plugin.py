"""Measure what a test marked with gpu_memory costs beside the test itself, and write
docs/results/tests.md.

    env/bin/python -m benchmarks.speed.pytest_plugin [--tests 1000]

`env/bin/python` is the interpreter of an environment that has torch, pytest and ullage, since tests
run where torch is. A suite of so many tests is run with marks and, as one program on the phantom,
without; a suite of one test in the same two ways is what starting takes, and is taken off.
Processor time is of all processes together, so that what else the machine does is not in it.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.provenance import made_by
from benchmarks.results import publish

GOAL_MS = 50
SUITE = """
import pytest
import torch

{mark}
@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    layer = torch.nn.Linear(256, 256).cuda()
    layer(torch.randn(8, 256, device="cuda")).sum().backward()
"""
UNRELATED = """
import pytest

@pytest.mark.parametrize("number", range(1000))
def test_it(number):
    pass
"""
MARK = '@pytest.mark.gpu_memory("1 GiB", leak="0 B")'
RUN = ("-c", "from ullage.cli import main; main()", "run", "--gpu", "h100-80gb", "--")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds by the clock, and of the processor by all processes together."""

    wall_s: float
    cpu_s: float

    def per_test_ms(self, one: "Spent", count: int) -> tuple[float, float]:
        """Milliseconds by which each further test makes it longer: wall, processor."""
        more = (self.wall_s - one.wall_s, self.cpu_s - one.cpu_s)
        return more[0] * 1000 / (count - 1), more[1] * 1000 / (count - 1)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--tests", type=int, default=1000)
    count = parser.parse_args().tests
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        marked, bare = (
            spend_alone_and_many(place, mark, words, count)
            for mark, words in ((MARK, PYTEST), ("", (*RUN, *PYTEST)))
        )
        (place / "test_it.py").write_text(UNRELATED, "utf-8")
        with_plugin, without = (
            min((spend(place, (*PYTEST, *more)) for _ in range(5)), key=lambda spent: spent.cpu_s)
            for more in ((), ("-p", "no:ullage"))
        )
    publish("speed-pytest", page(count, marked, bare, (with_plugin, without)))


def spend_alone_and_many(
    place: Path, mark: str, words: tuple[str, ...], count: int
) -> tuple[float, float]:
    """Milliseconds a test: wall, processor."""
    spent = []
    for number in (1, count):
        (place / "test_it.py").write_text(SUITE.format(mark=mark, count=number), "utf-8")
        spent.append(spend(place, words))
    return spent[1].per_test_ms(spent[0], count)


def spend(place: Path, words: tuple[str, ...]) -> Spent:
    """Run pytest to its end; SystemExit where a test does not pass."""
    before, started_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        (sys.executable, *words), cwd=place, capture_output=True, text=True, check=False
    )
    wall_s, after = time.perf_counter() - started_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{words} exited with {done.returncode}:\n{done.stdout[-2000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(wall_s, cpu_s)


def page(
    count: int,
    marked: tuple[float, float],
    bare: tuple[float, float],
    unrelated: tuple[Spent, Spent],
) -> str:
    """The text of docs/results/tests.md."""
    import pytest
    import torch

    with_plugin, without = unrelated
    load = os.getloadavg()[0]
    return f"""# What a marked test costs

{made_by("benchmarks.speed.pytest_plugin", torch=torch.__version__)}

The tests ran with pytest {pytest.__version__}; the load at the end was {load:.0f}. A test makes a layer and runs it forward and backward. {count} tests run in a forked
process each, and the same tests in one process on the phantom (`ullage run -- -m pytest`). The time of the start is
subtracted from both. Processor time is the sum over all processes, and hardly depends on other work of the machine.

| a test, in milliseconds | processor | wall |
|---|---:|---:|
| marked, forked | {marked[1]:.1f} | {marked[0]:.1f} |
| the same in one process | {bare[1]:.1f} | {bare[0]:.1f} |
| the difference (goal: at most {GOAL_MS}) | {marked[1] - bare[1]:.1f} | {marked[0] - bare[0]:.1f} |

A session of 1,000 tests without a mark takes {with_plugin.cpu_s:.2f} s of processor time with the plugin and {without.cpu_s:.2f} s
without it (`-p no:ullage`), the minimum of five sessions each.
"""  # noqa: E501


if __name__ == "__main__":
    main()
