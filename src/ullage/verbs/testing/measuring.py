"""Measures a marked test in the process that runs it, judges it, and notes its figures in its
reports.

They travel in the report of the teardown as `report.gpu_memory`, to wherever pytest sums up; for
JUnit files they are properties of the test as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from ullage.verbs.testing.limits import Limits
from ullage.verbs.testing.meter import GpuMemory
from ullage.verbs.testing.owners import Owned
from ullage.verbs.testing.settings import Options
from ullage.verbs.testing.verdict import (
    explain_excess,
    explain_leak,
    explain_peak,
    find_excess,
    find_increase,
)

LOOK = pytest.StashKey[Callable[[], Owned]]()
"""Stash key of a configuration: the function that finds the owners of this process's memory."""

_MEMORY = pytest.StashKey[GpuMemory]()
_FIGURES = pytest.StashKey[dict[str, Any]]()


def memory_of(item: pytest.Item) -> GpuMemory:
    """The value of the fixture in a measured test."""
    if _MEMORY not in item.stash:
        pytest.fail(
            "gpu_memory is measured from the start of a test: mark it with gpu_memory, or name the "
            "fixture in its arguments",
            pytrace=False,
        )
    return item.stash[_MEMORY]


def begin(item: pytest.Item) -> None:
    """Before the first fixture of the test; again where a plugin has it run again."""
    memory = GpuMemory(item.config.stash.get(LOOK, None))
    memory.begin()
    item.stash[_MEMORY] = memory
    item.stash[_FIGURES] = {}


def judge(item: pytest.Item, limits: Limits, options: Options) -> None:
    """After a test that has passed: fails it where it exceeds a limit."""
    memory = memory_of(item)
    gpu = options.gpu_of(limits)
    locked = options.locked(item.nodeid, gpu)
    lines = list(find_excess(memory, limits))
    if locked is not None:
        lines += find_increase(memory, locked)
    if lines:
        pytest.fail(explain_excess(lines, memory, gpu, locked), pytrace=False)
    if limits.has_any and not memory.peak:
        item.warn(pytest.PytestWarning("gpu_memory: the test has allocated nothing on the GPU"))


def hide_ullage(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """A traceback is what it would be on a GPU: where ullage watches, its frames are taken out."""
    if LOOK in item.config.stash and call.excinfo is not None:
        from ullage.players.inside.process.tracebacks import clean_tracebacks

        clean_tracebacks(call.excinfo.value)
        call.excinfo = pytest.ExceptionInfo.from_exception(call.excinfo.value)


def note_call(item: pytest.Item, limits: Limits, options: Options) -> None:
    """After the test itself, whatever its outcome: measures its memory."""
    memory = memory_of(item)
    figures = item.stash[_FIGURES] = {
        "gpu": options.gpu_of(limits),
        "limit_bytes": limits.peak_bytes,
        "peak_bytes": memory.peak,
        "reserved_bytes": memory.reserved_peak,
        "growth_bytes": None if memory.growth is None else round(memory.growth),
        "phases": dict(memory.phases),
        "left_bytes": None,
    }
    for name in ("peak_bytes", "reserved_bytes", "growth_bytes"):
        if figures[name] is not None:
            item.user_properties.append((f"gpu_memory_{name}", figures[name]))


def note_outcome(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, options: Options
) -> None:
    """After the report of the test itself."""
    memory, figures = memory_of(item), item.stash[_FIGURES]
    figures["has_passed"] = report.passed
    if not memory.has_owners:
        return
    if report.passed and options.is_updating and figures["peak_bytes"]:
        figures["owned"] = asdict(memory.owned())
    ran_out = call.excinfo is not None and call.excinfo.typename == "OutOfMemoryError"
    if ran_out and figures["peak_bytes"]:
        report.sections.append(("GPU memory", explain_peak(memory, figures["gpu"])))


def judge_rest(item: pytest.Item, limits: Limits) -> None:
    """After the teardown of a test that has passed: fails it where it leaves too much behind."""
    memory, figures = memory_of(item), item.stash[_FIGURES]
    if not figures.get("has_passed") or not (memory.has_owners or limits.leak_bytes is not None):
        return  # who failed holds what the traceback shows
    funcargs = getattr(item, "funcargs", None)
    if isinstance(funcargs, dict):
        funcargs.clear()  # pytest itself lets go of what fixtures gave a moment later
    left = memory.end()
    figures["left_bytes"] = left
    item.user_properties.append(("gpu_memory_left_bytes", left))
    if limits.leak_bytes is not None and left > limits.leak_bytes:
        owned = memory.owned() if memory.has_owners else None
        pytest.fail(explain_leak(left, limits.leak_bytes, owned), pytrace=False)


def finish(item: pytest.Item, report: pytest.TestReport) -> None:
    """After everything: the figures go into the last report."""
    memory_of(item).close()
    report.gpu_memory = item.stash[_FIGURES]  # type: ignore[attr-defined]


def is_measured(item: pytest.Item) -> bool:
    """True if the test has begun to be measured."""
    return _MEMORY in item.stash
