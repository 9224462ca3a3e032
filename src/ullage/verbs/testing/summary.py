"""The summary of all tests at pytest's end: the table of peaks, and the lock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from ullage.ground.errors import SpecError
from ullage.ground.units import format_bytes
from ullage.verbs.testing.settings import MEASURED, Options

if TYPE_CHECKING:
    from ullage.verbs.check.gate.lock import Entry

# Modules that held less of the peak are not locked, as of a scenario.
_LISTED_SHARE = 0.001
_COLUMNS = ("peak", "reserved", "left", "limit", "gpu")


class Summary:
    """Gathers the figures of the tests, of all processes that pytest has them from."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._figures: dict[str, dict[str, Any]] = {}
        self._failed: set[str] = set()
        self._said = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One report of one test."""
        if report.failed:
            self._failed.add(report.nodeid)
        figures = getattr(report, "gpu_memory", None)
        if figures and "peak_bytes" in figures:
            self._figures[report.nodeid] = figures

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the lock: of the tests that have passed."""
        if not self._options.is_updating:
            return
        passed = {
            nodeid: figures
            for nodeid, figures in self._figures.items()
            if nodeid not in self._failed and figures.get("has_passed")
        }
        entries = {
            nodeid: _entry(figure) for nodeid, figure in passed.items() if figure.get("owned")
        }
        measured = sum(figure["gpu"] == MEASURED for figure in passed.values())
        path = self._options.lock_path
        try:
            self._said = _write(self._options, entries)
        except SpecError as error:
            self._said = f"error: {error}"
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        if measured:
            self._said += (
                f"\n{measured} tests were measured on a real GPU, and are not in {path.name}: "
                "give --gpu-memory-gpu to run them on a phantom"
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints what was found."""
        if self._options.is_reporting:
            terminalreporter.section("GPU memory")
            for line in _table(self._figures):
                terminalreporter.write_line(line)
        if self._said:
            terminalreporter.write_line(self._said)


def _table(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each test, the largest peak first."""
    if not figures:
        return ["no test marked with gpu_memory has run"]
    rows = [(*_COLUMNS, "test")]
    for nodeid, figure in sorted(figures.items(), key=lambda pair: -pair[1]["peak_bytes"]):
        names = ("peak_bytes", "reserved_bytes", "left_bytes", "limit_bytes")
        rows.append((*(_size(figure[name]) for name in names), figure["gpu"], nodeid))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            (*(cell.rjust(width) for cell, width in zip(row[:4], widths, strict=False)),
             row[4].ljust(widths[4]), row[5])
        )
        for row in rows
    ]  # fmt: skip


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_bytes(size_bytes, 2)


def _write(options: Options, entries: Mapping[str, Entry]) -> str:
    from ullage.verbs.check.gate.lock import change_lock

    if not entries:
        return (
            f"{options.lock_path.name} is as it was: no marked test has passed and used a phantom "
            "GPU"
        )
    change_lock(options.lock_path, lambda lock: lock.with_tests(entries))
    return f"Wrote {options.lock_path} ({len(entries)} tests)"


def _entry(figures: Mapping[str, Any]) -> Entry:
    from ullage.explain.basis import BasisKind
    from ullage.ground.version import __version__
    from ullage.verbs.check.gate.lock import Entry, Key, Peaks

    owned = figures["owned"]
    return Entry(
        Key(
            torch=owned["torch"], cuda=owned["cuda"], gpu=figures["gpu"], ullage=__version__,
            allocator=owned["allocator"],
        ),
        Peaks(
            owned["requested_bytes"], figures["peak_bytes"], figures["reserved_bytes"],
            owned["used_bytes"],
        ),
        basis=BasisKind(owned["basis"]),
        assumed=tuple(owned["assumed"]),
        growth_bytes=figures["growth_bytes"],
        categories=owned["categories"],
        modules={
            path: size for path, size in owned["groups"].items()
            if size >= _LISTED_SHARE * figures["peak_bytes"]
        },
    )  # fmt: skip
